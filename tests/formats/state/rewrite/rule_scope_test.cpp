// SPDX-License-Identifier: Apache-2.0
#include "formats/state/rewrite/rule_scope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fsdp::formats {
namespace {

using test::expect_error;
using testing::ElementsAre;
using Names = std::vector<std::string>;

// Returns the rules where no whole key matches any.
ScopedRules scoped(const NameRules& rules, const Names& names) {
  return scoped_rules(rules, {}, names, names);
}

// Returns the new names; "-" if one is dropped.
Names renamed(const NameRules& rules, const Names& names) {
  const ScopedRules map = scoped(rules, names);
  Names out;
  for (const std::string& name : names) out.push_back(map.renamed(name).value_or("-"));
  return out;
}

TEST(ScopedRules, wrappers_go_wherever_they_stand) {
  const NameRules rules{.strip_wrappers = true, .strip = {}, .renames = {}, .drop = {}};
  EXPECT_THAT(renamed(rules, {"_orig_mod.l0._fsdp_wrapped_module.w",
                              "l1._checkpoint_wrapped_module._fsdp_wrapped_module.b"}),
              ElementsAre("l0.w", "l1.b"));
  EXPECT_THAT(renamed(rules, {"a.w"}), ElementsAre("a.w"));
  EXPECT_THAT(renamed(rules, {"_forward_module.l0.w"}), ElementsAre("l0.w"));
  EXPECT_THAT(renamed(rules, {"my_orig_mod.w", "_orig_mods.w"}),
              ElementsAre("my_orig_mod.w", "_orig_mods.w"));
}

TEST(ScopedRules, module_goes_where_every_name_begins_with_it) {
  const NameRules rules{.strip_wrappers = true, .strip = {}, .renames = {}, .drop = {}};
  EXPECT_THAT(renamed(rules, {"module.a", "_orig_mod.module.b.module.c"}),
              ElementsAre("a", "b.module.c"));
  EXPECT_THAT(renamed(rules, {"module.a", "head.b"}), ElementsAre("module.a", "head.b"));
  EXPECT_THAT(renamed(rules, {"module"}), ElementsAre("module"));
}

TEST(ScopedRules, a_prefix_is_stripped_with_its_dot) {
  const NameRules rules{.strip_wrappers = false, .strip = {"model"}, .renames = {}, .drop = {}};
  EXPECT_THAT(renamed(rules, {"model.a", "models.a", "b.model.a"}),
              ElementsAre("a", "models.a", "b.model.a"));
}

TEST(ScopedRules, rules_are_for_names_and_the_fronts_of_names_up_to_a_dot) {
  const NameRules rules{
      .strip_wrappers = false,
      .strip = {},
      .renames = {{"enc", "backbone"}, {"enc.last", "head"}, {"dec.", "d."}, {"x", "y"}},
      .drop = {}};
  EXPECT_THAT(renamed(rules, {"enc", "enc.w", "encoder.w", "enc.last.w", "dec", "dec.w", "x"}),
              ElementsAre("backbone", "backbone.w", "encoder.w", "head.w", "dec", "d.w", "y"));
}

TEST(ScopedRules, all_rules_apply_at_once) {
  const NameRules rules{
      .strip_wrappers = false, .strip = {}, .renames = {{"a", "b"}, {"b", "a"}}, .drop = {}};
  EXPECT_THAT(renamed(rules, {"a.w", "b.w"}), ElementsAre("b.w", "a.w"));
}

TEST(ScopedRules, renames_see_what_stripping_leaves_and_globs_the_name_as_it_is) {
  const NameRules rules{
      .strip_wrappers = true, .strip = {}, .renames = {{"a", "b"}}, .drop = {"_orig_mod.c.*"}};
  EXPECT_THAT(renamed(rules, {"_orig_mod.a.w", "_orig_mod.c.w"}), ElementsAre("b.w", "-"));
}

TEST(ScopedRules, an_empty_from_stands_before_every_name) {
  const NameRules rules{
      .strip_wrappers = false, .strip = {}, .renames = {{"", "net."}}, .drop = {}};
  EXPECT_THAT(renamed(rules, {"a.w"}), ElementsAre("net.a.w"));
}

TEST(ScopedRules, what_matches_no_name_is_left_to_keys) {
  const NameRules rules{.strip_wrappers = false,
                        .strip = {"state_dict"},
                        .renames = {{"a", "b"}, {"optim", "optimizer"}, {"/a", "c"}},
                        .drop = {"epoch", "/a.*"}};
  const Names names = {"a.w"};
  const ScopedRules map = scoped(rules, names);
  Names from;
  for (std::size_t r = 0; r < map.keys.size(); ++r)
    from.push_back(map.keys.rule(r).from + "=" + map.keys.rule(r).to);
  EXPECT_THAT(from, ElementsAre("state_dict.=", "a=c", "optim=optimizer"));
  ASSERT_EQ(map.key_globs.size(), 2U);
  EXPECT_EQ(map.key_globs[0].text(), "epoch");
  EXPECT_EQ(map.key_globs[1].text(), "a.*");
  EXPECT_EQ(map.renamed("a.w"), "b.w");
}

TEST(ScopedRules, modules_are_renamed_as_the_fronts_of_names) {
  const NameRules rules{
      .strip_wrappers = true, .strip = {}, .renames = {{"a", "b"}, {"c.w", "d"}}, .drop = {}};
  const Names names = {"_orig_mod.a.w", "_orig_mod.c.w"};
  const ScopedRules map = scoped(rules, names);
  EXPECT_EQ(map.renamed_module("_orig_mod"), "");
  EXPECT_EQ(map.renamed_module("_orig_mod.a"), "b");
  EXPECT_EQ(map.renamed_module("_orig_mod.c"), "c");
}

TEST(ScopedRules, rules_that_cannot_be_meant_are_refused) {
  NameRules prefix;
  prefix.strip = {""};
  expect_error(ErrorCode::kUsage, "the prefix to strip is empty", [&] { scoped(prefix, {"a.w"}); });
  NameRules nothing;
  nothing.renames = {{"a.w", ""}};
  expect_error(ErrorCode::kName, "'a.w' would be left without a name",
               [&] { renamed(nothing, {"a.w"}); });
}

}  // namespace
}  // namespace fsdp::formats
