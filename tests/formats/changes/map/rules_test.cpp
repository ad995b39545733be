// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/map/rules.h"

#include <string>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fsdp::formats::map {
namespace {

using test::expect_error;

constexpr const char* kRules = R"(description = "this to that"
model_type = "llama"

[parameters]
heads = { config = "num_attention_heads" }

[[rule]]
from = ["l.{i:int}.q", "l.{i}.k"]
to = "m.{i}.qk"
do = [{ op = "concatenate" }, "transpose"]

[[rule]]
from = "l.{i:int}.o"
to = "m.{i}.o"
do = [{ op = "rotary", heads = "heads", to = "halves" }]
optional = true

[[rule]]
drop = "extra"
only = "forward"

[rename]
"norm.{p:weight|bias}" = "ln.{p}"
)";

TEST(Rules, are_read_in_the_order_of_the_text) {
  const Rules rules = parse_rules(kRules, "r.toml", Direction::kForward);
  EXPECT_EQ(rules.description, "this to that");
  EXPECT_EQ(rules.model_types, std::vector<std::string>{"llama"});
  ASSERT_EQ(rules.rules.size(), 4U);
  EXPECT_EQ(rules.rules[0].line, 7U);
  EXPECT_EQ(rules.rules[0].from[1].text(), "l.{i}.k");
  // Restricted like the first.
  EXPECT_FALSE(rules.rules[0].from[1].match("l.x.k"));
  EXPECT_EQ(rules.rules[0].operations.size(), 2U);
  EXPECT_TRUE(rules.rules[1].optional);
  EXPECT_TRUE(rules.rules[2].to.empty());
  EXPECT_EQ(rules.rules[3].from[0].text(), "norm.{p:weight|bias}");
  EXPECT_EQ(rules.parameter("heads").config[0], "num_attention_heads");
}

TEST(Rules, only_a_map_with_model_types_needs_a_configuration) {
  const std::string rule = "needs_config = true\n[rename]\na = \"b\"\n";
  EXPECT_TRUE(parse_rules("model_type = \"m\"\n" + rule, "r", Direction::kForward).needs_config);
  EXPECT_FALSE(parse_rules("[rename]\na = \"b\"\n", "r", Direction::kForward).needs_config);
  expect_error(ErrorCode::kUsage, "needs_config is for a map with a model_type",
               [&] { parse_rules(rule, "r", Direction::kForward); });
}

TEST(Rules, may_keep_layers_apart) {
  const std::string rule = "[rename]\na = \"b\"\n";
  EXPECT_FALSE(parse_rules(rule, "r", Direction::kForward).layers_apart);
  EXPECT_TRUE(parse_rules("layers_apart = true\n" + rule, "r", Direction::kReverse).layers_apart);
}

TEST(Rules, lead_back) {
  const Rules rules = parse_rules(kRules, "r.toml", Direction::kReverse);
  ASSERT_EQ(rules.rules.size(), 3U);  // nothing that is for one direction only
  EXPECT_EQ(rules.rules[0].from[0].text(), "m.{i}.qk");
  EXPECT_EQ(rules.rules[0].to.size(), 2U);
  EXPECT_EQ(rules.rules[0].operations[0].kind, OperationKind::kTranspose);
  EXPECT_EQ(rules.rules[0].operations[1].kind, OperationKind::kSplit);
  EXPECT_FALSE(rules.rules[1].operations[0].halves);
  EXPECT_TRUE(rules.rules[2].from[0].match("ln.bias"));
  EXPECT_FALSE(rules.rules[2].from[0].match("ln.other"));
}

TEST(Rules, what_is_added_to_names_has_bounds) {
  Rules rules = parse_rules("[parameters]\nn = { value = 1 }\n[rename]\n\"a.{i}\" = \"b.{i+n}\"\n",
                            "r.toml", Direction::kReverse);
  EXPECT_FALSE(rules.rules[0].to[0].match("a.x"));
  rules.set_offsets([](const std::string&) { return 3; });
  EXPECT_EQ(rules.rules[0].from[0].match("b.3"), (Captures{{"i", "0"}}));
  for (const std::int64_t value : {std::int64_t{-1}, Pattern::kMaxOffset + 1}) {
    expect_error(ErrorCode::kUsage, "r.toml: line 2: parameter 'n' is ",
                 [&] { rules.set_offsets([&](const std::string&) { return value; }); });
  }
}

TEST(Rules, tensors_are_gathered_over_one_capture) {
  const char* text = "[[rule]]\nfrom = \"e.{i}.w\"\nto = \"w\"\nover = \"i\"\ndo = [\"stack\"]\n";
  EXPECT_TRUE(parse_rules(text, "r", Direction::kForward).rules[0].collects());
  EXPECT_TRUE(parse_rules(text, "r", Direction::kReverse).rules[0].spreads());
}

TEST(Rules, what_contradicts_itself_is_refused_by_line) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "r.toml: line 1: holds no rule"},
      {"rules = []\n", "did you mean rule?"},
      {"[[rule]]\nto = \"b\"\n", "line 1"},
      {"[[rule]]\nfrom = \"a\"\n", "'to'"},
      {"[[rule]]\nfrom = []\nto = \"b\"\n", "line 2"},
      {"[[rule]]\nfrom = \"a{\"\nto = \"b\"\n", "line 2: pattern"},
      {"[[rule]]\nfrom = \"a.{i}\"\nto = \"b\"\n",
       "line 1: captures differ: {i} in from, none in to"},
      {"[[rule]]\nfrom = [\"a.{i}\", \"b\"]\nto = \"c\"\ndo = [\"stack\"]\n", "captures differ"},
      {"[[rule]]\nfrom = [\"a\", \"b\"]\nto = \"c\"\n", "need an operation"},
      {"[[rule]]\nfrom = \"a.{i}\"\nto = \"b.{i}\"\nover = \"i\"\n", "not on both"},
      {"[[rule]]\nfrom = \"a\"\nto = \"b\"\nover = \"i\"\n", "stands on none"},
      {"[[rule]]\ndrop = \"a\"\ndo = [\"stack\"]\n", "neither `over` nor `do`"},
      {"[[rule]]\nfrom = \"a\"\nto = \"b\"\nonly = \"back\"\n",
       "line 4: only is forward or reverse"},
      {"[[rule]]\nfrom = \"a\"\nto = \"b\"\noptional = 1\n", "line 4"},
      {"[[rule]]\nfrom = \"a\"\nto = \"b\"\ndo = [{ op = \"pad\", to = \"n\" }]\n",
       "no parameter 'n'"},
      {"[parameters]\nn = { value = \"m\" }\n[rename]\na = \"b\"\n", "no parameter 'm'"},
      {"[parameters]\nn = 3\n[rename]\na = \"b\"\n", "line 2"},
      {"[[rule]]\nfrom = \"a\"\nto = \"b\"\nskip_lone = true\n", "skip_lone is for rules"},
      {"[[rule]]\nfrom = \"a\"\nto = \"b\"\nbeside = \"c\"\n", "needs `only`"},
      {"[[rule]]\nfrom = \"a.{i}\"\nto = \"b.{i}\"\nbeside = \"c.{k}\"\nonly = \"forward\"\n",
       "beside has captures that from lacks: {k} and {i}"},
      {"[[rule]]\ndrop = \"a\"\nbeside = \"b\"\nonly = \"forward\"\n", "nor `beside`"},
      {"[[rule]]\ndrop = \"a\"\nskip_lone = true\n", "nor `skip_lone`"},
      {"[rename]\n\"a.{i:int}\" = \"b.{i+n}\"\n", "line 2: the map has no parameter 'n'"},
      {"[[rule]]\ndrop = \"b.{i+n}\"\nonly = \"forward\"\n", "no parameter 'n'"},
      {"[parameters]\nn = { value = 1 }\n[rename]\n\"a.{i:**}\" = \"b.{i+n}\"\n",
       "line 4: 'n' is added to {i}, which is not an integer in 'a.{i:**}'"},
      {"[parameters]\nn = { count_of = \"b.{i+n}\" }\n[rename]\na = \"b\"\n",
       "line 2: a parameter comes of names to which nothing is added"},
      {"[rename]\na = 3\n", "line 2"}};
  for (const auto& [text, says] : cases) {
    expect_error(ErrorCode::kUsage, says,
                 [text = text] { parse_rules(text, "r.toml", Direction::kForward); });
  }
}

TEST(Rules, what_cannot_be_undone_has_no_reverse) {
  for (const char* rest :
       {"from = \"a\"\nto = \"b\"\ndo = [{ op = \"reshape\", to = [-1] }]\n",
        "from = \"a\"\nto = \"b\"\ndo = [{ op = \"cast\", to = \"float16\" }]\n",
        "from = [\"a\", \"c\"]\nto = \"b\"\ndo = [{ op = \"concatenate\", sizes = \"any\" }]\n",
        "from = \"a\"\nto = \"b\"\ndo = [{ op = \"scale\", by = 0 }]\n", "drop = \"a\"\n",
        "from = [\"a\", \"c\"]\nto = \"b\"\ndo = [{ op = \"dequantize\", scales = \"mxfp4\" "
        "}]\n"}) {
    const std::string text = std::string("[[rule]]\n") + rest;
    EXPECT_NO_THROW(parse_rules(text, "r", Direction::kForward));
    expect_error(ErrorCode::kUnsupported, "cannot be undone",
                 [&] { parse_rules(text, "r", Direction::kReverse); });
  }
}

}  // namespace
}  // namespace fsdp::formats::map
