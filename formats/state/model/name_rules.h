// SPDX-License-Identifier: Apache-2.0
// Rules that give parameters and keys new names, as users write them.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fsdp::formats {

// `from` stands for the name itself and for the front of names up to a dot: "encoder" renames
// "encoder" and "encoder.weight", "encoder." only the latter.  Empty: the front of every name.  A
// `from` that begins with '/' applies to whole keys only.
struct NameRule {
  std::string from;
  std::string to;
};

struct NameRules {
  bool strip_wrappers = false;     // see ScopedRules
  std::vector<std::string> strip;  // prefixes; a trailing dot may be left out
  std::vector<NameRule> renames;
  std::vector<std::string> drop;  // globs; with a leading '/' for whole keys only
  bool empty() const { return !strip_wrappers && strip.empty() && renames.empty() && drop.empty(); }
};

// Parses "FROM=TO".  Throws: kUsage.
NameRule parse_name_rule(std::string_view text);

// Parses a map file: a JSON object of names to names, or lines "from<TAB>to" or "from => to", where
// empty lines and lines that begin with '#' are ignored.
// Throws: kJson, kJsonDepth, kUsage naming the line, kUtf8.
std::vector<NameRule> parse_name_map(std::string_view text);

// Finds the rule with the longest `from` for a name, in time that does not depend on the number of
// rules.
class RuleTable {
 public:
  // Throws: kRekeyCollision if a `from` is given twice; kUsage if a `to` does not fit its `from`.
  explicit RuleTable(std::vector<NameRule> rules = {});
  struct Match {
    std::size_t rule;
    std::size_t bytes;  // length of the front of the name that `to` replaces
  };
  std::optional<Match> find(std::string_view name) const;
  const NameRule& rule(std::size_t number) const { return rules_[number]; }
  std::size_t size() const { return rules_.size(); }
  // Returns `name` with the matched front replaced.
  std::string apply(std::string_view name, const Match& match) const;

 private:
  std::vector<NameRule> rules_;
  std::unordered_map<std::string, std::size_t> by_from_;
};

}  // namespace fsdp::formats
