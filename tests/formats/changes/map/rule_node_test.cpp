// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/map/rule_node.h"

#include <string>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fsdp::formats::map {
namespace {

using test::expect_error;

const RuleNode& member(const RuleNode& node, const std::string& name) {
  for (const auto& [key, value] : *node.as_table())
    if (key == name) return value;
  throw Error(ErrorCode::kKey, name);
}

TEST(RuleNode, toml_and_json_are_read_alike) {
  const RuleNode toml = parse_rule_node(
      "# a comment\nn = 3\nx = 0.5\n[[rule]]\nfrom = [\"a\", \"b\"]\n\n[[rule]]\noptional = "
      "true\n");
  const RuleNode json = parse_rule_node(
      "{\n\"n\": 3,\n\"x\": 0.5,\n\"rule\": [{\n\"from\": [\"a\", \"b\"]},\n\n{\n\"optional\": "
      "true}]}");
  for (const RuleNode* root : {&toml, &json}) {
    EXPECT_EQ(*member(*root, "n").as_int(), 3);
    EXPECT_EQ(std::get<double>(member(*root, "x").value), 0.5);
    const RuleNode::List& rules = *member(*root, "rule").as_list();
    ASSERT_EQ(rules.size(), 2U);
    EXPECT_EQ(*member(rules[0], "from").as_list()->at(1).as_text(), "b");
    EXPECT_TRUE(*member(rules[1], "optional").as_bool());
    EXPECT_EQ(member(*root, "n").line, 2U);
    EXPECT_EQ(member(rules[0], "from").line, 5U);
    EXPECT_EQ(member(rules[1], "optional").line, 8U);
  }
}

TEST(RuleNode, members_stand_in_the_order_of_their_lines) {
  const RuleNode root = parse_rule_node("z = 1\na = 2\nm = 3\n");
  std::string names;
  for (const auto& [name, value] : *root.as_table()) names += name;
  EXPECT_EQ(names, "zam");
}

TEST(RuleNode, damage_is_named_with_its_line) {
  expect_error(ErrorCode::kToml, "line 2", [] { parse_rule_node("a = 1\nb = \n"); });
  expect_error(ErrorCode::kToml, "line 2", [] { parse_rule_node("a = 1\na = 2\n"); });
  expect_error(ErrorCode::kToml, "a date or a time", [] { parse_rule_node("a = 2020-01-02\n"); });
  expect_error(ErrorCode::kJson, "line 2: 'a' is given twice",
               [] { parse_rule_node("{\"a\": 1,\n\"a\": 2}"); });
  expect_error(ErrorCode::kJson, "63 bits",
               [] { parse_rule_node("{\"a\": 9223372036854775808}"); });
  expect_error(ErrorCode::kToml, "line 2: has a character beyond ASCII",
               [] { parse_rule_node("a = 1\n# gr\u00f6\u00dfer\n"); });
  EXPECT_NO_THROW(parse_rule_node("{\"a\": \"gr\u00f6\u00dfer\"}"));
  expect_error(ErrorCode::kUtf8, "UTF-8", [] { parse_rule_node("a = '\xff'"); });
}

TEST(RuleNode, size_and_depth_are_bounded) {
  expect_error(ErrorCode::kLimitSize, "1048577",
               [] { parse_rule_node(std::string((1U << 20U) + 1, '#')); });
  expect_error(ErrorCode::kLimitDepth, "16",
               [] { parse_rule_node("a = " + std::string(20, '[') + std::string(20, ']')); });
  expect_error(ErrorCode::kJsonDepth, "16",
               [] { parse_rule_node("{\"a\": " + std::string(20, '[')); });
}

TEST(RuleNode, kinds_have_names) {
  const RuleNode root = parse_rule_node("{\"a\": [null, true, 1, 1.5, \"x\", [], {}]}");
  std::string kinds;
  for (const RuleNode& node : *member(root, "a").as_list())
    kinds += std::string(node_kind(node)) + ";";
  EXPECT_EQ(kinds, "null;a truth value;a whole number;a number;a string;a list;a table;");
}

}  // namespace
}  // namespace fsdp::formats::map
