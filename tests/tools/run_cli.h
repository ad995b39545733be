// SPDX-License-Identifier: Apache-2.0
// Runs the command line in process, and a folder for what it writes.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tools/cli.h"

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
  return std::string(FSDP_TEST_DATA "/golden/") + name;
}

inline std::string file_bytes(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// A fresh folder a test, removed after it.
class CliTest : public testing::Test {
 protected:
  CliTest() {
    std::string name = testing::TempDir() + "fsdp_cli_XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    folder_ = name;
  }
  ~CliTest() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).native(); }
  // A copy of a golden checkpoint that may be damaged.
  std::string copy_of(const std::string& golden, const std::string& name) const {
    std::filesystem::copy(golden_path(golden), folder_ / name,
                          std::filesystem::copy_options::recursive);
    std::filesystem::permissions(folder_ / name, std::filesystem::perms::owner_all);
    if (std::filesystem::is_directory(folder_ / name)) {
      for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_ / name)) {
        std::filesystem::permissions(entry, std::filesystem::perms::owner_all);
      }
    }
    return path(name);
  }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      found.push_back(entry.path().filename());
    return found;
  }
  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
};

}  // namespace fsdp::cli
