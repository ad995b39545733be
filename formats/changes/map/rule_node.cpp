// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/map/rule_node.h"

#include <algorithm>
#include <cstddef>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats::map {
namespace {

// Maps of the largest models take some tens of KiB.
constexpr std::size_t kMaxRuleBytes = 1U << 20U;
// Operations of rules hold lists of numbers, and nothing nests deeper.
constexpr std::size_t kMaxRuleDepth = 16;

// Builds the tree.  JsonHandler gives positions of names only.
class NodeBuilder : public JsonHandler {
 public:
  explicit NodeBuilder(std::string_view text) : text_(text) {}

  void begin_object() override { open(RuleNode::Table()); }
  void key(std::string name, std::uint64_t offset) override {
    line_ += static_cast<std::uint64_t>(
        std::count(text_.begin() + static_cast<std::ptrdiff_t>(counted_),
                   text_.begin() + static_cast<std::ptrdiff_t>(offset), '\n'));
    counted_ = offset;
    auto& table = std::get<RuleNode::Table>(open_.back()->value);
    for (const auto& [known, value] : table) {
      if (known == name) {
        throw Error(ErrorCode::kJson, cat("line ", line_, ": ", quote(name), " is given twice"));
      }
    }
    // A table in a list starts at its first name.
    if (table.empty()) open_.back()->line = line_;
    table.emplace_back(std::move(name), RuleNode());
  }
  void end_object() override { open_.pop_back(); }
  void begin_array() override { open(RuleNode::List()); }
  void end_array() override { open_.pop_back(); }
  void value(Json scalar) override {
    RuleNode& node = next();
    if (const bool* truth = scalar.as_bool()) node.value = *truth;
    if (const std::int64_t* number = scalar.as_int()) node.value = *number;
    if (const std::string* text = scalar.as_string()) node.value = *text;
    if (const double* number = std::get_if<double>(&scalar.storage())) node.value = *number;
    if (std::holds_alternative<std::uint64_t>(scalar.storage()))
      throw Error(ErrorCode::kJson, cat("line ", line_, ": a number exceeds 63 bits"));
  }

  RuleNode take() { return std::move(root_); }

 private:
  // Makes the node that the next value goes to.
  RuleNode& next() {
    RuleNode* node = &root_;
    if (!open_.empty()) {
      if (auto* list = std::get_if<RuleNode::List>(&open_.back()->value)) {
        node = &list->emplace_back();
      } else {
        node = &std::get<RuleNode::Table>(open_.back()->value).back().second;
      }
    }
    node->line = line_;
    return *node;
  }
  template <typename Container>
  void open(Container empty) {
    RuleNode& node = next();
    node.value = std::move(empty);
    // Containers that are open do not move: only the innermost one grows.
    open_.push_back(&node);
  }

  std::string_view text_;
  std::uint64_t line_ = 1;
  std::uint64_t counted_ = 0;
  RuleNode root_;
  std::vector<RuleNode*> open_;
};

}  // namespace

std::string_view node_kind(const RuleNode& node) {
  constexpr std::string_view kKinds[] = {"null",     "a truth value", "a whole number", "a number",
                                         "a string", "a list",        "a table"};
  return kKinds[node.value.index()];
}

RuleNode parse_rule_node(std::string_view text) {
  if (text.size() > kMaxRuleBytes) {
    throw Error(ErrorCode::kLimitSize,
                cat("has ", text.size(), " bytes of rules, at most ", kMaxRuleBytes));
  }
  if (!is_utf8(text)) throw Error(ErrorCode::kUtf8, "is not UTF-8");
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || text[first] != '{') return parse_toml(text);
  NodeBuilder builder(text);
  parse_json_stream(text, builder, {.max_depth = kMaxRuleDepth});
  return builder.take();
}

}  // namespace fsdp::formats::map
