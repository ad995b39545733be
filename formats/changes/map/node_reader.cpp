// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/map/node_reader.h"

#include <algorithm>
#include <cmath>

#include "formats/bytes/base/text.h"

namespace fsdp::formats::map {
namespace {

Error other_kind(const RuleNode& node, const char* what, const char* expected) {
  return wrong(node, cat(what, " is ", node_kind(node), ", expected ", expected));
}

}  // namespace

Error wrong(const RuleNode& node, const std::string& why) {
  return Error(ErrorCode::kUsage, cat("line ", node.line, ": ", why));
}

std::string did_you_mean(const std::string& word, std::span<const std::string> names) {
  const std::string near = nearest(word, names);
  return near.empty() ? "" : "; did you mean " + near + "?";
}

const std::string& text_of(const RuleNode& node, const char* what) {
  if (node.as_text() == nullptr) throw other_kind(node, what, "a string");
  return *node.as_text();
}

std::int64_t integer_of(const RuleNode& node, const char* what) {
  if (node.as_int() == nullptr) throw other_kind(node, what, "a whole number");
  return *node.as_int();
}

double number_of(const RuleNode& node, const char* what) {
  if (node.as_int() != nullptr) return static_cast<double>(*node.as_int());
  const double* number = std::get_if<double>(&node.value);
  if (number == nullptr) throw other_kind(node, what, "a number");
  if (!std::isfinite(*number)) throw wrong(node, cat(what, " is not finite"));
  return *number;
}

bool truth_of(const RuleNode& node, const char* what) {
  if (node.as_bool() == nullptr) throw other_kind(node, what, "true or false");
  return *node.as_bool();
}

const RuleNode::List& list_of(const RuleNode& node, const char* what) {
  if (node.as_list() == nullptr) throw other_kind(node, what, "a list");
  return *node.as_list();
}

Expression expression_of(const RuleNode& node, const char* what) {
  if (node.as_int() != nullptr) return Expression(*node.as_int());
  if (node.as_text() == nullptr) throw other_kind(node, what, "a whole number or an expression");
  try {
    return Expression(*node.as_text());
  } catch (const Error& error) {
    throw wrong(node, error.what());
  }
}

std::vector<std::string> texts_of(const RuleNode& node, const char* what) {
  if (node.as_text() != nullptr) return {*node.as_text()};
  std::vector<std::string> texts;
  if (node.as_list() == nullptr) throw other_kind(node, what, "a string or a list of strings");
  for (const RuleNode& item : *node.as_list()) texts.push_back(text_of(item, what));
  if (texts.empty()) throw wrong(node, cat(what, " is an empty list"));
  return texts;
}

NodeReader::NodeReader(const RuleNode& node, const char* what, std::uint64_t line)
    : table_(node.as_table()), what_(what), line_(line) {
  if (table_ == nullptr) throw other_kind(node, what, "a table");
}

const RuleNode* NodeReader::find(const std::string& name) {
  asked_.push_back(name);
  const auto found =
      std::ranges::find_if(*table_, [&](const auto& member) { return member.first == name; });
  return found == table_->end() ? nullptr : &found->second;
}

const RuleNode& NodeReader::need(const std::string& name) {
  const RuleNode* node = find(name);
  if (node == nullptr)
    throw Error(ErrorCode::kUsage, cat("line ", line_, ": ", what_, " needs ", quote(name)));
  return *node;
}

void NodeReader::refuse_others() const {
  for (const auto& [name, node] : *table_) {
    if (std::ranges::find(asked_, name) != asked_.end()) continue;
    throw wrong(node,
                cat(what_, " has an unknown member ", quote(name), did_you_mean(name, asked_)));
  }
}

}  // namespace fsdp::formats::map
