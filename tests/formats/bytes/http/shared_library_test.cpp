// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/http/shared_library.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fsdp::formats {
namespace {

TEST(SharedLibrary, finds_functions) {
  const SharedLibrary file("libc.so.6", "libc");
  int (*absolute)(int) = nullptr;
  file.find(absolute, "abs");
  ASSERT_NE(absolute, nullptr);
  EXPECT_EQ(absolute(-3), 3);
}

TEST(SharedLibrary, one_that_is_missing_is_named_with_its_package) {
  test::expect_error(ErrorCode::kUnsupported, "a URL needs libnone.so.9, which could not be loaded",
                     [] { SharedLibrary("libnone.so.9", "none 9 (Debian: libnone9)"); });
  test::expect_error(ErrorCode::kUnsupported, "; install none 9 (Debian: libnone9)",
                     [] { SharedLibrary("libnone.so.9", "none 9 (Debian: libnone9)"); });
}

TEST(SharedLibrary, a_function_that_is_missing_is_named) {
  const SharedLibrary file("libc.so.6", "libc");
  int (*none)() = nullptr;
  test::expect_error(ErrorCode::kUnsupported, "libc.so.6: has no function no_such_function",
                     [&] { file.find(none, "no_such_function"); });
  EXPECT_EQ(none, nullptr);
}

}  // namespace
}  // namespace fsdp::formats
