// SPDX-License-Identifier: Apache-2.0
// Patterns of tensor names whose numbers a configuration does not tell.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::formats::hf {

// Patterns such as "layers.{}.bias".  Tensors of one group are present together: if one pattern has
// its tensor of layer 3, the others have theirs.
class OpenPatterns {
 public:
  // `group`: 0 for a pattern without a group.
  void add(const std::string& pattern, std::int64_t group);

  // Returns whether a name matches one of the patterns.
  bool match(const std::string& name) const;

  // Returns the names that must be present beside those in `present`, and are not.
  std::vector<std::string> missing(const std::set<std::string>& present) const;

 private:
  struct Pattern {
    std::string text;
    std::int64_t group = 0;
  };
  const Pattern* find(const std::string& name) const;

  // By the text with all numbers as "{}": a pattern may have fixed numbers too.
  std::map<std::string, std::vector<Pattern>> patterns_;
};

// Names of tensors with "{}" in the place of numbers: "layers.{}.bias" for those of all layers.

// Returns the name with "{}" in the place of each number between dots, and these numbers.
std::pair<std::string, std::vector<std::int64_t>> pattern_of(const std::string& name);

// Returns `pattern` with the numbers in the places of "{}".
std::string filled(const std::string& pattern, const std::vector<std::int64_t>& numbers);

// Returns the entry of `names` for a name, or for its pattern, with its numbers; empty: there is
// none.
std::string translated(const std::map<std::string, std::string>& names, const std::string& name);

}  // namespace fsdp::formats::hf
