// SPDX-License-Identifier: Apache-2.0
// Names of tensors of which a configuration does not tell the numbers.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace fsdp::formats::hf {

// Patterns "layers.{}.bias".  Those of one group are there together: where one has its tensor of
// layer 3, the others have theirs.
class OpenPatterns {
 public:
  // `group`: 0 for a pattern that is in none.
  void add(const std::string& pattern, std::int64_t group);

  // Whether a name is of one of the patterns.
  bool match(const std::string& name) const;

  // Returns the names that have to be there beside those in `present`, and are not.
  std::vector<std::string> missing(const std::set<std::string>& present) const;

 private:
  struct Pattern {
    std::string text;
    std::int64_t group = 0;
  };
  const Pattern* find(const std::string& name) const;

  // By the text with all numbers as "{}": a pattern may have numbers of its own.
  std::map<std::string, std::vector<Pattern>> patterns_;
};

}  // namespace fsdp::formats::hf
