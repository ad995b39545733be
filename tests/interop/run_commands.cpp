// SPDX-License-Identifier: Apache-2.0
// Runs command lines of fsdp-ckpt as they come, in one process: to start one takes longer than most
// commands on small checkpoints.
//
// Reads a command a line, its words apart by tabs.  Answers each with a line "STATUS OUT ERR", the
// exit status and the lengths in bytes of standard output and standard error, which follow.
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "tools/command/cli.h"

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<std::string> words;
    std::istringstream in(line);
    for (std::string word; std::getline(in, word, '\t');) words.push_back(word);
    std::ostringstream out;
    std::ostringstream err;
    const int status = fsdp::cli::run(words, out, err);
    std::cout << status << ' ' << out.view().size() << ' ' << err.view().size() << '\n'
              << out.view() << err.view() << std::flush;
  }
  return 0;
}
