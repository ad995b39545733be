// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/outputs/place.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

using fsdp::test::TempDir;

constexpr int kNoNamespaces = 77;

// Runs `test` in a process that sees no /proc; returns what it returns, or kNoNamespaces.
template <typename Test>
int without_proc(const Test& test) {
  const pid_t child = ::fork();
  if (child == 0) {
    int result = kNoNamespaces;
    if (::unshare(CLONE_NEWNS) == 0 &&
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
        ::mount("none", "/proc", "tmpfs", 0, nullptr) == 0) {
      result = test();
    }
    ::_exit(result);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(OutputPlace, the_path_of_the_temporary_follows_its_folder) {
  TempDir dir;
  std::filesystem::create_directory(dir / "a");
  const OutputPlace place(dir / "a/out", OutputKind::kFile);
  const FileDescriptor claimed = place.claim();
  std::filesystem::rename(dir / "a", dir / "b");
  EXPECT_TRUE(
      std::filesystem::equivalent(place.path_of_temporary(), dir / "b" / place.temporary()));
}

TEST(OutputPlace, without_proc_the_temporary_has_a_path_and_a_moved_folder_is_noticed) {
  TempDir dir;
  std::filesystem::create_directory(dir / "a");
  const int result = without_proc([&] {
    const OutputPlace place(dir / "a/out", OutputKind::kFile);
    const FileDescriptor claimed = place.claim();
    if (!std::filesystem::equivalent(place.path_of_temporary(), dir / "a" / place.temporary()))
      return 1;
    std::filesystem::rename(dir / "a", dir / "b");
    std::filesystem::create_directory(dir / "a");
    try {
      (void)place.path_of_temporary();
    } catch (const Error& error) {
      return std::strstr(error.what(), "its folder was moved") != nullptr ? 0 : 2;
    }
    return 3;
  });
  if (result == kNoNamespaces) GTEST_SKIP() << "needs root to hide /proc";
  EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace fsdp::formats
