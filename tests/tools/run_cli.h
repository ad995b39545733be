// SPDX-License-Identifier: Apache-2.0
// Runs the command line in process, and provides a folder for its output.
#pragma once

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"
#include "tools/command/cli.h"

namespace fsdp::cli {

struct CliResult {
  int status;
  std::string out;
  std::string err;
};

inline CliResult run_cli(const std::vector<std::string>& args) {
  std::ostringstream out;
  std::ostringstream err;
  const int status = run(args, out, err);
  return {status, out.str(), err.str()};
}

// The checkpoint or file of a case under tests/data/golden: "2.15.0/fsdp2/ckpt".
inline std::string golden_path(const std::string& name) {
  return test::data_path("golden/" + name).native();
}

inline std::string file_bytes(const std::filesystem::path& path) {
  return test::to_text(test::read_file(path));
}

using test::write_file;

// Makes a fresh folder for each test, and removes it afterwards.
class CliTest : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return (folder_ / name).native(); }
  // A copy of a golden checkpoint that may be damaged.
  std::string copy_of(const std::string& golden, const std::string& name) const {
    const std::filesystem::path copy = folder_ / name;
    std::filesystem::copy(golden_path(golden), copy, std::filesystem::copy_options::recursive);
    std::filesystem::permissions(copy, std::filesystem::perms::owner_all);
    if (std::filesystem::is_directory(copy)) {
      for (const auto& entry : std::filesystem::recursive_directory_iterator(copy)) {
        std::filesystem::permissions(entry, std::filesystem::perms::owner_all);
      }
    }
    return path(name);
  }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder()))
      found.push_back(entry.path().filename());
    return found;
  }
  const std::filesystem::path& folder() const { return folder_.path(); }

 private:
  test::TempDir folder_;
};

}  // namespace fsdp::cli
