// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/map/matching.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fsdp::formats::map {
namespace {

using test::expect_error;
using Names = std::vector<std::string>;

Rules rules_of(const std::string& text) {
  return parse_rules(text, "r.toml", Direction::kForward);
}

TEST(Matching, names_come_together_by_their_captures) {
  const Rules rules = rules_of(
      "[[rule]]\nfrom = [\"l.{i:int}.q\", \"l.{i}.k\"]\nto = \"m.{i}\"\ndo = [\"stack\"]\n"
      "[rename]\nnorm = \"ln\"\n");
  // In any order; uses stand in the order of their first names.
  const auto uses = rule_uses(rules, Names{"l.1.k", "norm", "l.0.q", "l.1.q", "l.0.k"});
  ASSERT_EQ(uses.size(), 3U);
  EXPECT_EQ(uses[0].sources, (Names{"l.1.q", "l.1.k"}));
  EXPECT_EQ(uses[0].targets, Names{"m.1"});
  EXPECT_EQ(uses[1].targets, Names{"ln"});
  EXPECT_EQ(uses[2].sources, (Names{"l.0.q", "l.0.k"}));
}

TEST(Matching, numbers_are_gathered_in_their_order) {
  const Rules rules = rules_of(
      "[[rule]]\nfrom = \"l.{i:int}.e.{e}\"\nto = \"l.{i}.all\"\nover = \"e\"\ndo = [\"stack\"]\n");
  Names names;
  for (int e = 11; e >= 0; --e) names.push_back("l.3.e." + std::to_string(e));
  const auto uses = rule_uses(rules, names);
  ASSERT_EQ(uses.size(), 1U);
  EXPECT_EQ(uses[0].sources[2], "l.3.e.2");
  EXPECT_EQ(uses[0].sources[10], "l.3.e.10");
  EXPECT_EQ(uses[0].targets, Names{"l.3.all"});
  expect_error(ErrorCode::kKey, "'l.3.e.1' is missing, which goes with 'l.3.e.0'", [&] {
    rule_uses(rules, Names{"l.3.e.0", "l.3.e.2"});
  });
  // What is not a number belongs to no rule.
  expect_error(ErrorCode::kKey, "'l.3.e.x'", [&] {
    rule_uses(rules, Names{"l.3.e.0", "l.3.e.x"});
  });
}

TEST(Matching, a_rule_that_spreads_names_as_many_as_there_are) {
  const Rules rules = rules_of(
      "[[rule]]\nfrom = \"w.{i:int}\"\nto = \"e.{i}.{e}\"\nover = \"e\"\ndo = [\"unstack\"]\n");
  const auto uses = rule_uses(rules, Names{"w.4"});
  EXPECT_TRUE(uses[0].targets.empty());
  EXPECT_EQ(target_names(rules, uses[0], 3), (Names{"e.4.0", "e.4.1", "e.4.2"}));
  const Rules two = rules_of("[[rule]]\nfrom = \"w\"\nto = [\"a\", \"b\"]\ndo = [\"split\"]\n");
  expect_error(ErrorCode::kShape, "make 3 tensors, and the rule names 2",
               [&] { target_names(two, rule_uses(two, Names{"w"})[0], 3); });
}

TEST(Matching, several_patterns_are_gathered_one_after_the_other) {
  const char* text =
      "[[rule]]\nfrom = \"all.{i:int}\"\nto = [\"e.{i}.{e}.gate\", \"e.{i}.{e}.up\"]\nover = "
      "\"e\"\n"
      "do = [{ op = \"split\", dim = 1 }, \"unstack\"]\n";
  const Rules spread = rules_of(text);
  EXPECT_EQ(target_names(spread, rule_uses(spread, Names{"all.4"})[0], 4),
            (Names{"e.4.0.gate", "e.4.1.gate", "e.4.0.up", "e.4.1.up"}));
  expect_error(ErrorCode::kShape, "make 3 tensors",
               [&] { target_names(spread, rule_uses(spread, Names{"all.4"})[0], 3); });
  const Rules collect = parse_rules(text, "r.toml", Direction::kReverse);
  const auto uses = rule_uses(collect, Names{"e.4.1.up", "e.4.0.gate", "e.4.1.gate", "e.4.0.up"});
  ASSERT_EQ(uses.size(), 1U);
  EXPECT_EQ(uses[0].sources, (Names{"e.4.0.gate", "e.4.1.gate", "e.4.0.up", "e.4.1.up"}));
  expect_error(ErrorCode::kKey, "'e.4.1.up' is missing", [&] {
    rule_uses(collect, Names{"e.4.0.gate", "e.4.1.gate", "e.4.0.up"});
  });
}

TEST(Matching, the_first_rule_takes_a_name) {
  const Rules rules = rules_of("[rename]\n\"a.{i:int}\" = \"b.{i}\"\n\"{rest:**}\" = \"{rest}\"\n");
  const auto uses = rule_uses(rules, Names{"a.1", "a.x"});
  EXPECT_EQ(uses[0].targets, Names{"b.1"});
  EXPECT_EQ(uses[1].targets, Names{"a.x"});
}

TEST(Matching, a_tensor_that_comes_alone_may_be_left_to_the_next_rules) {
  const Rules rules = rules_of(
      "[[rule]]\nfrom = [\"{l:**}.w\", \"{l}.s\"]\nto = \"{l}.w\"\ndo = [\"dequantize\"]\n"
      "skip_lone = true\n[rename]\n\"{rest:**}\" = \"{rest}\"\n");
  const auto uses = rule_uses(rules, Names{"norm.w", "a.s", "a.w"});
  ASSERT_EQ(uses.size(), 2U);
  EXPECT_EQ(uses[0].sources, Names{"norm.w"});
  EXPECT_EQ(uses[1].sources, (Names{"a.w", "a.s"}));
  EXPECT_EQ(uses[1].targets, Names{"a.w"});
  // What would go with it may not: a scale needs its weight.
  expect_error(ErrorCode::kKey, "line 1: 'b.w' is missing, which goes with 'b.s'", [&] {
    rule_uses(rules, Names{"a.w", "a.s", "b.s"});
  });
  // Nor may one of those that are gathered.
  const Rules gathers = rules_of(
      "[[rule]]\nfrom = [\"{e}.w\", \"{e}.s\"]\nto = \"w\"\nover = \"e\"\nskip_lone = true\n"
      "do = [\"dequantize\", \"stack\"]\n[rename]\n\"{rest:**}\" = \"{rest}\"\n");
  expect_error(ErrorCode::kKey, "'1.s' is missing, which goes with '0.w'", [&] {
    rule_uses(gathers, Names{"0.w", "0.s", "1.w", "2.w", "2.s"});
  });
}

TEST(Matching, what_must_be_beside_tells_tensors_apart) {
  const Rules rules = rules_of(
      "[[rule]]\nfrom = \"l.{i:int}.norm\"\nto = \"m.{i}.before_experts\"\n"
      "beside = [\"l.{i}.router\", \"l.{i}.bias\"]\nonly = \"forward\"\n"
      "[rename]\n\"l.{i:int}.norm\" = \"m.{i}.norm\"\n\"l.{i:int}.{rest:**}\" = "
      "\"m.{i}.{rest}\"\n");
  const auto uses = rule_uses(
      rules, Names{"l.0.norm", "l.1.norm", "l.1.router", "l.1.bias", "l.2.norm", "l.2.bias"});
  ASSERT_EQ(uses.size(), 6U);
  EXPECT_EQ(uses[0].targets, Names{"m.0.norm"});
  EXPECT_EQ(uses[1].targets, Names{"m.1.before_experts"});
  EXPECT_EQ(uses[4].targets, Names{"m.2.norm"});
}

TEST(Matching, layers_are_counted_from_a_parameter_on) {
  const char* text =
      "[parameters]\nn = { value = 1 }\n[rename]\n\"mtp.{i:int}.w\" = \"l.{i+n}.w\"\n"
      "\"d.{i:int}.w\" = \"l.{i}.w\"\n";
  const auto targets = [&](Direction direction, std::int64_t n, const Names& names) {
    Rules rules = parse_rules(text, "r.toml", direction);
    rules.set_offsets([&](const std::string&) { return n; });
    Names out;
    for (const RuleUse& use : rule_uses(rules, names)) out.push_back(use.targets.at(0));
    return out;
  };
  EXPECT_EQ(targets(Direction::kForward, 2, Names{"d.0.w", "d.1.w", "mtp.0.w", "mtp.1.w"}),
            (Names{"l.0.w", "l.1.w", "l.2.w", "l.3.w"}));
  EXPECT_EQ(targets(Direction::kReverse, 2, Names{"l.0.w", "l.1.w", "l.2.w", "l.3.w"}),
            (Names{"d.0.w", "d.1.w", "mtp.0.w", "mtp.1.w"}));
  // A number that is too small is not passed over.
  expect_error(ErrorCode::kRekeyCollision, "'l.1.w' would be made of", [&] {
    targets(Direction::kForward, 1, Names{"d.0.w", "d.1.w", "mtp.0.w"});
  });
  expect_error(ErrorCode::kKey, "no rule takes 'mtp.9999999999999999999.w'", [&] {
    targets(Direction::kForward, 1, Names{"d.0.w", "mtp.0.w", "mtp.9999999999999999999.w"});
  });
}

TEST(Matching, what_does_not_go_on_is_named) {
  const Rules rules = rules_of(
      "[[rule]]\nfrom = [\"l.{i:int}.q\", \"l.{i}.k\"]\nto = \"m.{i}\"\ndo = [\"stack\"]\n"
      "[rename]\nnorm = \"ln\"\n");
  expect_error(
      ErrorCode::kKey,
      "r.toml: line 1: 'l.0.k' is missing, which goes with 'l.0.q'; the nearest is 'l.0.kk'", [&] {
        rule_uses(rules_of("[[rule]]\nfrom = [\"l.{i:int}.q\", \"l.{i}.k\"]\nto = \"m.{i}\"\ndo = "
                           "[\"stack\"]\n"
                           "[rename]\n\"l.0.kk\" = \"o\"\n"),
                  Names{"l.0.q", "l.0.kk"});
      });
  expect_error(ErrorCode::kKey, "no rule takes 'norms'; the nearest pattern is 'norm'", [&] {
    rule_uses(rules, Names{"l.0.q", "l.0.k", "norm", "norms"});
  });
  expect_error(ErrorCode::kRekeyUnused, "line 6: 'norm' matches nothing", [&] {
    rule_uses(rules, Names{"l.0.q", "l.0.k"});
  });
  expect_error(ErrorCode::kKey, "for another architecture", [&] {
    rule_uses(rules, Names{"x", "y", "z"});
  });
  expect_error(ErrorCode::kRekeyCollision, "'c' would be made of 'b' and, by line 2, of 'a'", [] {
    rule_uses(rules_of("[rename]\na = \"c\"\nb = \"c\"\n"), Names{"a", "b"});
  });
}

}  // namespace
}  // namespace fsdp::formats::map
