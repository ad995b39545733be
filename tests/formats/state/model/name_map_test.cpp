// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/name_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fsdp::formats {
namespace {

using test::expect_error;
using testing::ElementsAre;
using Names = std::vector<std::string>;

// Returns the new names; "-" if one is dropped.
Names renamed(const NameRules& rules, const Names& names) {
  const NameMap map(rules, names, names);
  Names out;
  for (const std::string& name : names) out.push_back(map.renamed(name).value_or("-"));
  return out;
}

TEST(NameMap, wrappers_go_wherever_they_stand) {
  const NameRules rules{.strip_wrappers = true, .strip = {}, .renames = {}, .drop = {}};
  EXPECT_THAT(renamed(rules, {"_orig_mod.l0._fsdp_wrapped_module.w",
                              "l1._checkpoint_wrapped_module._fsdp_wrapped_module.b"}),
              ElementsAre("l0.w", "l1.b"));
  EXPECT_THAT(renamed(rules, {"a.w"}), ElementsAre("a.w"));
  EXPECT_THAT(renamed(rules, {"_forward_module.l0.w"}), ElementsAre("l0.w"));
  EXPECT_THAT(renamed(rules, {"my_orig_mod.w", "_orig_mods.w"}),
              ElementsAre("my_orig_mod.w", "_orig_mods.w"));
}

TEST(NameMap, module_goes_where_every_name_begins_with_it) {
  const NameRules rules{.strip_wrappers = true, .strip = {}, .renames = {}, .drop = {}};
  EXPECT_THAT(renamed(rules, {"module.a", "_orig_mod.module.b.module.c"}),
              ElementsAre("a", "b.module.c"));
  EXPECT_THAT(renamed(rules, {"module.a", "head.b"}), ElementsAre("module.a", "head.b"));
  EXPECT_THAT(renamed(rules, {"module"}), ElementsAre("module"));
}

TEST(NameMap, a_prefix_is_stripped_with_its_dot) {
  const NameRules rules{.strip_wrappers = false, .strip = {"model"}, .renames = {}, .drop = {}};
  EXPECT_THAT(renamed(rules, {"model.a", "models.a", "b.model.a"}),
              ElementsAre("a", "models.a", "b.model.a"));
}

TEST(NameMap, rules_are_for_names_and_the_fronts_of_names_up_to_a_dot) {
  const NameRules rules{
      .strip_wrappers = false,
      .strip = {},
      .renames = {{"enc", "backbone"}, {"enc.last", "head"}, {"dec.", "d."}, {"x", "y"}},
      .drop = {}};
  EXPECT_THAT(renamed(rules, {"enc", "enc.w", "encoder.w", "enc.last.w", "dec", "dec.w", "x"}),
              ElementsAre("backbone", "backbone.w", "encoder.w", "head.w", "dec", "d.w", "y"));
}

TEST(NameMap, all_rules_apply_at_once) {
  const NameRules rules{
      .strip_wrappers = false, .strip = {}, .renames = {{"a", "b"}, {"b", "a"}}, .drop = {}};
  EXPECT_THAT(renamed(rules, {"a.w", "b.w"}), ElementsAre("b.w", "a.w"));
}

TEST(NameMap, renames_see_what_stripping_leaves_and_globs_the_name_as_it_is) {
  const NameRules rules{
      .strip_wrappers = true, .strip = {}, .renames = {{"a", "b"}}, .drop = {"_orig_mod.c.*"}};
  EXPECT_THAT(renamed(rules, {"_orig_mod.a.w", "_orig_mod.c.w"}), ElementsAre("b.w", "-"));
}

TEST(NameMap, an_empty_from_stands_before_every_name) {
  const NameRules rules{
      .strip_wrappers = false, .strip = {}, .renames = {{"", "net."}}, .drop = {}};
  EXPECT_THAT(renamed(rules, {"a.w"}), ElementsAre("net.a.w"));
}

TEST(NameMap, what_matches_no_name_is_left_to_keys) {
  const NameRules rules{.strip_wrappers = false,
                        .strip = {"state_dict"},
                        .renames = {{"a", "b"}, {"optim", "optimizer"}, {"/a", "c"}},
                        .drop = {"epoch", "/a.*"}};
  const Names names = {"a.w"};
  const NameMap map(rules, names, names);
  Names from;
  for (const NameRule& rule : map.key_rules()) from.push_back(rule.from + "=" + rule.to);
  EXPECT_THAT(from, ElementsAre("state_dict.=", "a=c", "optim=optimizer"));
  ASSERT_EQ(map.key_globs().size(), 2U);
  EXPECT_EQ(map.key_globs()[0].text(), "epoch");
  EXPECT_EQ(map.key_globs()[1].text(), "a.*");
  EXPECT_EQ(map.renamed("a.w"), "b.w");
}

TEST(NameMap, modules_are_renamed_as_the_fronts_of_names) {
  const NameRules rules{
      .strip_wrappers = true, .strip = {}, .renames = {{"a", "b"}, {"c.w", "d"}}, .drop = {}};
  const Names names = {"_orig_mod.a.w", "_orig_mod.c.w"};
  const NameMap map(rules, names, names);
  EXPECT_EQ(map.renamed_module("_orig_mod"), "");
  EXPECT_EQ(map.renamed_module("_orig_mod.a"), "b");
  EXPECT_EQ(map.renamed_module("_orig_mod.c"), "c");
}

TEST(NameMap, rules_that_cannot_be_meant_are_refused) {
  const auto use = [](const NameRules& rules) { NameMap(rules, Names{"a.w"}, Names{"a.w"}); };
  NameRules twice;
  twice.renames = {{"a", "b"}, {"a", "c"}};
  expect_error(ErrorCode::kRekeyCollision, "'a' is to become 'b' and 'c'", [&] { use(twice); });
  NameRules front;
  front.renames = {{"a.", "b"}};
  expect_error(ErrorCode::kUsage, "'a.=b'", [&] { use(front); });
  NameRules behind;
  behind.renames = {{"a", "b."}};
  expect_error(ErrorCode::kUsage, "TO ends with a dot, but FROM does not", [&] { use(behind); });
  NameRules prefix;
  prefix.strip = {""};
  expect_error(ErrorCode::kUsage, "the prefix to strip is empty", [&] { use(prefix); });
  NameRules nothing;
  nothing.renames = {{"a.w", ""}};
  expect_error(ErrorCode::kName, "'a.w' would be left without a name",
               [&] { renamed(nothing, {"a.w"}); });
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
