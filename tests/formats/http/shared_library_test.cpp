// SPDX-License-Identifier: Apache-2.0
#include "formats/http/shared_library.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fsdp::formats {
namespace {

TEST(SharedLibrary, FindsFunctions) {
  const SharedLibrary library("libc.so.6", "the C library");
  int (*function)(int) = nullptr;
  library.find(function, "abs");
  EXPECT_EQ(function(-3), 3);
  test::expect_error(ErrorCode::kUnsupported, "libc.so.6: has no function fsdp_none",
                     [&] { library.find(function, "fsdp_none"); });
}

TEST(SharedLibrary, SaysWhatToInstall) {
  test::expect_error(ErrorCode::kUnsupported, "; install the package none",
                     [] { const SharedLibrary library("libfsdp-none.so.1", "the package none"); });
  test::expect_error(ErrorCode::kUnsupported,
                     "a URL needs libfsdp-none.so.1, which could not be loaded (",
                     [] { const SharedLibrary library("libfsdp-none.so.1", "the package none"); });
}

}  // namespace
}  // namespace fsdp::formats
