// SPDX-License-Identifier: Apache-2.0
// Reads the members of a table of a rule file, and refuses members that are not known.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/changes/map/expression.h"
#include "formats/changes/map/rule_node.h"

namespace fsdp::formats::map {

// More dimensions than any library's tensors have.
inline constexpr std::size_t kMaxRank = 64;

// "line 12: WHY".
Error wrong(const RuleNode& node, const std::string& why);

// Returns "; did you mean NAME?" for the name that is nearest to `word`; empty if none is near.
std::string did_you_mean(const std::string& word, std::span<const std::string> names);

// Return the node's value as that type.  `what`: what the node is, for messages.
// Throws: kUsage if the node has another type.
const std::string& text_of(const RuleNode& node, const char* what);
std::int64_t integer_of(const RuleNode& node, const char* what);
double number_of(const RuleNode& node, const char* what);  // finite
bool truth_of(const RuleNode& node, const char* what);
const RuleNode::List& list_of(const RuleNode& node, const char* what);
// A whole number or a text.
Expression expression_of(const RuleNode& node, const char* what);
// A text, or a list of texts that is not empty.
std::vector<std::string> texts_of(const RuleNode& node, const char* what);

// Lifetime: the node outlives it.
class NodeReader {
 public:
  // `what`: "a rule", for messages.  Throws: kUsage if the node is not a table.
  NodeReader(const RuleNode& node, const char* what, std::uint64_t line);
  // Returns the member, nullptr if there is none.
  const RuleNode* find(const std::string& name);
  // Throws: kUsage if there is none.
  const RuleNode& need(const std::string& name);
  // Throws: kUsage for the first member that was not looked for, with the nearest name.
  void refuse_others() const;

 private:
  const RuleNode::Table* table_;
  std::string what_;
  std::uint64_t line_;
  std::vector<std::string> asked_;
};

}  // namespace fsdp::formats::map
