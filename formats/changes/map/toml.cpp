// SPDX-License-Identifier: Apache-2.0
// TOML as a tree of plain values: the only file that knows toml++.
#include <algorithm>
#include <cstddef>
#include <string>

#define TOML_ENABLE_FORMATTERS 0
#define TOML_ENABLE_WINDOWS_COMPAT 0
#include <toml++/toml.h>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/map/rule_node.h"

namespace fsdp::formats::map {
namespace {

// toml++ itself stops at 256 levels, and later for dotted names.
constexpr std::size_t kMaxTomlDepth = 16;

RuleNode converted(const toml::node& node, std::size_t depth) {
  if (depth > kMaxTomlDepth) {
    throw Error(ErrorCode::kLimitDepth, cat("line ", node.source().begin.line, ": more than ",
                                            kMaxTomlDepth, " tables and lists in each other"));
  }
  RuleNode out;
  out.line = node.source().begin.line;
  if (const auto* table = node.as_table()) {
    RuleNode::Table members;
    for (const auto& [key, value] : *table)
      members.emplace_back(std::string(key.str()), converted(value, depth + 1));
    std::ranges::stable_sort(
        members, [](const auto& a, const auto& b) { return a.second.line < b.second.line; });
    out.value = std::move(members);
  } else if (const auto* list = node.as_array()) {
    RuleNode::List items;
    for (const toml::node& item : *list) items.push_back(converted(item, depth + 1));
    out.value = std::move(items);
  } else if (const auto* text = node.as_string()) {
    out.value = text->get();
  } else if (const auto* number = node.as_integer()) {
    out.value = number->get();
  } else if (const auto* real = node.as_floating_point()) {
    out.value = real->get();
  } else if (const auto* truth = node.as_boolean()) {
    out.value = truth->get();
  } else {
    throw Error(ErrorCode::kToml, cat("line ", out.line, ": is a date or a time"));
  }
  return out;
}

}  // namespace

RuleNode parse_toml(std::string_view text) {
  // toml++ 3.3 runs into undefined behaviour for characters of some ranges where a token begins.
  const auto wide =
      std::ranges::find_if(text, [](char c) { return static_cast<unsigned char>(c) > 0x7F; });
  if (wide != text.end()) {
    throw Error(ErrorCode::kToml,
                cat("line ", std::count(text.begin(), wide, '\n') + 1,
                    ": has a character beyond ASCII; rules in JSON may have any"));
  }
  try {
    return converted(toml::parse(text), 0);
  } catch (const toml::parse_error& error) {
    throw Error(ErrorCode::kToml,
                cat("line ", error.source().begin.line, ": ", escape(error.description())));
  }
}

}  // namespace fsdp::formats::map
