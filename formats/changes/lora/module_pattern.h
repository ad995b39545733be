// SPDX-License-Identifier: Apache-2.0
// The regular expressions that peft's rank_pattern and alpha_pattern hold, matched in linear time.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace fsdp::formats {

// What Python's re.match(r"(.*\.)?(PATTERN)$", module) finds.  Source: peft 0.21's get_pattern_key.
// Understood: characters, '.', classes, \d \w \s and escaped punctuation, groups, alternatives,
// '*', '+', '?', counts up to 64, '^' and '$'.
class ModulePattern {
 public:
  // Returns nothing for a pattern with anything else, whose meaning is not guessed.
  static std::optional<ModulePattern> parse(std::string_view pattern);
  bool matches(std::string_view module) const;

 private:
  friend class PatternParser;
  // A state of the automaton, with up to two next states.
  struct State {
    enum class Kind : std::uint8_t { kCharacters, kSplit, kBegin, kEnd, kAccept };
    Kind kind = Kind::kAccept;
    std::bitset<256> characters = {};
    std::size_t next = 0;
    std::size_t other = 0;
  };
  std::vector<State> states_;
  std::size_t start_ = 0;
};

}  // namespace fsdp::formats
