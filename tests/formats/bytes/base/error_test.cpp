// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/error.h"

#include <cctype>
#include <set>

#include <gtest/gtest.h>

namespace fsdp {
namespace {

TEST(Error, keeps_code_and_message) {
  const Error error(ErrorCode::kZipCrc, "crc is wrong");
  EXPECT_EQ(error.code(), ErrorCode::kZipCrc);
  EXPECT_STREQ(error.what(), "crc is wrong");
}

TEST(Error, is_told_from_further_out_with_its_code) {
  const Error inner(ErrorCode::kTruncated, "version needs 2 bytes");
  const Error outer = inner.in("data.pkl").in("a.pt");
  EXPECT_EQ(outer.code(), ErrorCode::kTruncated);
  EXPECT_STREQ(outer.what(), "a.pt: data.pkl: version needs 2 bytes");
}

TEST(ErrorCode, every_code_has_a_name_of_its_own) {
  std::set<std::string_view> names;
  // The last code; a code added after it moves it.
  const int count = static_cast<int>(ErrorCode::kH5Checksum) + 1;
  for (int code = 0; code < count; ++code) {
    const std::string_view name = code_name(static_cast<ErrorCode>(code));
    EXPECT_NE(name, "UNKNOWN") << code;
    EXPECT_TRUE(names.insert(name).second) << name;
    for (const char c : name) {
      EXPECT_TRUE(c == '_' || std::isupper(c) != 0 || std::isdigit(c) != 0) << name;
    }
  }
  EXPECT_EQ(code_name(ErrorCode::kZipCrc), "ZIP_CRC");
  EXPECT_EQ(code_name(ErrorCode::kZip64), "ZIP64");
  EXPECT_EQ(code_name(static_cast<ErrorCode>(count)), "UNKNOWN");
}

}  // namespace
}  // namespace fsdp
