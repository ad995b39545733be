// SPDX-License-Identifier: Apache-2.0
// Results of CPython 3.11 for the same lines: pickle.loads(b"V" + line + b"\n."), b"S", b"p".
#include "formats/containers/pickle/literals.h"

#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

using ::testing::Optional;

TEST(PickleLiterals, texts_of_unicode) {
  EXPECT_THAT(raw_unicode("os"), Optional(std::string("os")));
  EXPECT_THAT(raw_unicode(R"(\u0041b)"), Optional(std::string("Ab")));
  EXPECT_THAT(raw_unicode(R"(\U0001F600)"), Optional(std::string("\xF0\x9F\x98\x80")));
  EXPECT_THAT(raw_unicode(R"(\ud800)"), Optional(std::string("\xED\xA0\x80")));
  EXPECT_THAT(raw_unicode("\xE9"), Optional(std::string("\xC3\xA9")));
  EXPECT_THAT(raw_unicode(R"(a\n)"), Optional(std::string(R"(a\n)")));
  EXPECT_THAT(raw_unicode(R"(a\)"), Optional(std::string(R"(a\)")));
  // Pairs of backslashes stay as they are, and no escape begins inside one.
  EXPECT_THAT(raw_unicode(R"(a\\u)"), Optional(std::string(R"(a\\u)")));
  EXPECT_THAT(raw_unicode(R"(a\\u0041)"), Optional(std::string(R"(a\\u0041)")));
  EXPECT_THAT(raw_unicode(R"(\u005cu0041)"), Optional(std::string(R"(\u0041)")));
  EXPECT_THAT(raw_unicode(R"(\\\u0041)"), Optional(std::string(R"(\\A)")));
}

TEST(PickleLiterals, what_is_no_text_of_unicode) {
  for (const char* line : {R"(\u00)", R"(x\u)", R"(\U00110000)", R"(\u00g0)"}) {
    EXPECT_EQ(raw_unicode(line), std::nullopt) << line;
  }
}

TEST(PickleLiterals, texts_in_quotes) {
  EXPECT_THAT(quoted_text("'os'"), Optional(std::string("os")));
  EXPECT_THAT(quoted_text("\"os\""), Optional(std::string("os")));
  EXPECT_THAT(quoted_text("''"), Optional(std::string()));
  EXPECT_THAT(quoted_text(R"('o\x73')"), Optional(std::string("os")));
  EXPECT_THAT(quoted_text(R"('\157s')"), Optional(std::string("os")));
  EXPECT_THAT(quoted_text(R"('\1234')"), Optional(std::string("S4")));
  EXPECT_THAT(quoted_text(R"('o\777s')"), Optional(std::string("o\xFFs")));
  EXPECT_THAT(quoted_text(R"('o\'s')"), Optional(std::string("o's")));
  EXPECT_THAT(quoted_text(R"('\n')"), Optional(std::string("\n")));
  EXPECT_THAT(quoted_text(R"('a\qb\8')"), Optional(std::string(R"(a\qb\8)")));
}

TEST(PickleLiterals, what_is_no_text_in_quotes) {
  for (const char* line : {"os", "'os", "'", "", "'a'  ", "  'a'", R"('a\')", R"('o\x7')"}) {
    EXPECT_EQ(quoted_text(line), std::nullopt) << line;
  }
}

TEST(PickleLiterals, slots) {
  EXPECT_EQ(slot_number("0"), 0U);
  EXPECT_EQ(slot_number(" 7 "), 7U);
  EXPECT_EQ(slot_number("+5"), 5U);
  EXPECT_EQ(slot_number("1_0"), 10U);
  for (const char* line : {"-1", "0x1", "", "99999999999999999999", "1__0", "_1", "1_", "+ 1"}) {
    EXPECT_EQ(slot_number(line), std::nullopt) << line;
  }
}

}  // namespace
}  // namespace fsdp::formats
