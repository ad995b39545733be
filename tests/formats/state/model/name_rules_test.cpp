// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/name_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fsdp::formats {
namespace {

using test::expect_error;
using testing::ElementsAre;
using Names = std::vector<std::string>;

TEST(RuleTable, rules_that_cannot_be_meant_are_refused) {
  expect_error(ErrorCode::kRekeyCollision, "'a' is to become 'b' and 'c'", [] {
    RuleTable(std::vector<NameRule>{{"a", "b"}, {"a", "c"}});
  });
  expect_error(ErrorCode::kUsage, "'a.=b'", [] { RuleTable(std::vector<NameRule>{{"a.", "b"}}); });
  expect_error(ErrorCode::kUsage, "TO ends with a dot, but FROM does not", [] {
    RuleTable(std::vector<NameRule>{{"a", "b."}});
  });
}

TEST(ParseNameRule, splits_at_the_first_equals_sign) {
  EXPECT_EQ(parse_name_rule("a=b=c").from, "a");
  EXPECT_EQ(parse_name_rule("a=b=c").to, "b=c");
  EXPECT_EQ(parse_name_rule("a.=").to, "");
  expect_error(ErrorCode::kUsage, "'ab': expected FROM=TO", [] { parse_name_rule("ab"); });
  expect_error(ErrorCode::kUtf8, "not UTF-8", [] { parse_name_rule("a=\xff"); });
}

TEST(ParseNameMap, reads_json_and_lines) {
  const auto text = [](std::string_view file) {
    Names out;
    for (const NameRule& rule : parse_name_map(file)) out.push_back(rule.from + "|" + rule.to);
    return out;
  };
  EXPECT_THAT(text(" {\"a\": \"b\", \"c\": \"\"}\n"), ElementsAre("a|b", "c|"));
  EXPECT_THAT(text("# names\n\na\tb\nc => d e\r\n  \nf=>g"), ElementsAre("a|b", "c|d e", "f|g"));
  EXPECT_THAT(text(" \n"), ElementsAre());
}

TEST(ParseNameMap, refuses_what_it_cannot_read) {
  const struct {
    std::string_view text;
    ErrorCode code;
    const char* fragment;
  } kCases[] = {
      {"{\"a\": \"b\", \"a\": \"c\"}", ErrorCode::kJson, "a"},
      {"{\"a\": 1}", ErrorCode::kJson, "the new name of 'a' is an integer, expected a string"},
      {"{\"a\": NaN}", ErrorCode::kJson, "byte"},
      {"{\"a\": \"\\x\"}", ErrorCode::kJson, "byte"},
      {"{\"a\": \"\\ud800\"}", ErrorCode::kJson, "byte"},
      {"a => b\nc\n", ErrorCode::kUsage, "line 2: 'c': expected from<TAB>to"},
      {"a => \xff\n", ErrorCode::kUtf8, "not UTF-8"},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.text);
    expect_error(c.code, c.fragment, [&] { parse_name_map(c.text); });
  }
}

}  // namespace
}  // namespace fsdp::formats
