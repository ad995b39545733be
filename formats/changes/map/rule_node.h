// SPDX-License-Identifier: Apache-2.0
// A file of rules as a tree of plain values that know their lines: TOML and JSON are read alike.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace fsdp::formats::map {

struct RuleNode {
  using List = std::vector<RuleNode>;
  using Table = std::vector<std::pair<std::string, RuleNode>>;  // in the order of the names' lines
  std::variant<std::nullptr_t, bool, std::int64_t, double, std::string, List, Table> value =
      nullptr;
  // Counted from 1; in JSON, that of the name before the value.
  std::uint64_t line = 1;

  const bool* as_bool() const { return std::get_if<bool>(&value); }
  const std::int64_t* as_int() const { return std::get_if<std::int64_t>(&value); }
  const std::string* as_text() const { return std::get_if<std::string>(&value); }
  const List* as_list() const { return std::get_if<List>(&value); }
  const Table* as_table() const { return std::get_if<Table>(&value); }
};

// "a string", "a list", ...
std::string_view node_kind(const RuleNode& node);

// Parses a text that begins with '{' as JSON, any other as TOML 1.0; the root is a table.
// Throws: kLimitSize, kLimitDepth (TOML) and kJsonDepth, kToml naming the line (also for TOML
// beyond ASCII), kJson, kUtf8.
RuleNode parse_rule_node(std::string_view text);

// Parses the TOML case of parse_rule_node.
RuleNode parse_toml(std::string_view text);

}  // namespace fsdp::formats::map
