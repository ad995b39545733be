// SPDX-License-Identifier: Apache-2.0
// Helpers for the tests of outputs: a folder's names, a writer that is killed, a comparison of a
// seal with its files.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "formats/bytes/base/crc32.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/files/seal.h"
#include "tests/support/golden.h"

namespace fsdp::test {

inline std::string content(const std::filesystem::path& path) {
  return to_text(read_file(path));
}

// Returns the names in a folder, including hidden ones.
inline std::set<std::string> names(const std::filesystem::path& folder) {
  std::set<std::string> result;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    result.insert(entry.path().filename().string());
  }
  return result;
}

// Runs `body` in a child, which ends without destructors by SIGKILL when `body` returns.
inline void run_and_kill(const std::function<void()>& body) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    try {
      body();
    } catch (...) {
      ::_exit(1);
    }
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
}

// Expects the lines of the seal to match what reading the files gives.
inline void expect_seals(const std::filesystem::path& seal, const std::filesystem::path& folder,
                         const std::vector<std::string>& files) {
  const std::vector<formats::SealedFile> sealed = formats::read_seal(*formats::file_at(seal));
  ASSERT_EQ(sealed.size(), files.size());
  for (std::size_t i = 0; i < files.size(); ++i) {
    const auto bytes = read_file(folder / files[i]);
    EXPECT_EQ(sealed[i].name, files[i]);
    EXPECT_EQ(sealed[i].bytes, bytes.size()) << files[i];
    EXPECT_EQ(sealed[i].crc, formats::crc32(0, bytes)) << files[i];
  }
}

}  // namespace fsdp::test
