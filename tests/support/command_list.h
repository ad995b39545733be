// SPDX-License-Identifier: Apache-2.0
// Files of fsdp-ckpt's command lines, which one test program runs, and of its answers: starting a
// process takes longer than most commands on small checkpoints.
#pragma once

#include <ostream>
#include <sstream>
#include <string>
#include <vector>

namespace fsdp::test {

// Splits a line, a command whose words are separated by tabs.
inline std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words;
  std::istringstream in(line);
  for (std::string word; std::getline(in, word, '\t');) words.push_back(word);
  return words;
}

inline void write_lines(std::ostream& to, const char* mark, const std::string& text) {
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) to << mark << ' ' << line << '\n';
}

// Writes "status N", then the lines of standard output after "out ", and of standard error after
// "err ".
inline void write_result(std::ostream& to, int status, const std::string& out,
                         const std::string& err) {
  to << "status " << status << '\n';
  write_lines(to, "out", out);
  write_lines(to, "err", err);
}

}  // namespace fsdp::test
