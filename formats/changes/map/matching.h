// SPDX-License-Identifier: Apache-2.0
// Finds which rule takes which tensors, by their names alone.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "formats/changes/map/rules.h"

namespace fsdp::formats::map {

// One use of a rule: tensors that become others together.
struct RuleUse {
  std::size_t rule = 0;
  Captures captures;                 // without the one that the rule gathers over
  std::vector<std::string> sources;  // in the order of the rule's patterns, then of the numbers
  std::vector<std::string> targets;  // none for a rule that drops, or that spreads
};

// Returns the names of a use's tensors.  `count`: the number of arrays that its operations made.
// Throws: kShape if the rule names another number of tensors.
std::vector<std::string> target_names(const Rules& rules, const RuleUse& use, std::size_t count);

// Finds the uses of all rules, in the order of the first name of each use.  Every name is taken by
// the first rule that has a pattern for it.
// Throws: kKey for a name that no rule takes, or a use that lacks a source, with the nearest;
// kRekeyUnused for a rule that takes nothing and is not optional; kRekeyCollision for two sources
// of one target.  All name the file and the line of the rule.
std::vector<RuleUse> rule_uses(const Rules& rules, std::span<const std::string> names);

// Finds names that several uses make.
class TargetNames {
 public:
  explicit TargetNames(const Rules& rules) : rules_(rules) {}
  // Throws: kRekeyCollision.
  void add(const std::string& name, const RuleUse& use);

 private:
  struct Made {
    std::size_t rule;
    std::string source;
  };
  const Rules& rules_;
  std::map<std::string, Made> made_;
};

// "rules.toml: line 12".
std::string place_of(const Rules& rules, const Rule& rule);

}  // namespace fsdp::formats::map
