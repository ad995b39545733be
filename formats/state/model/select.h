// SPDX-License-Identifier: Apache-2.0
// Globs over fully qualified names, which choose keys of a checkpoint.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fsdp::formats {

// A pattern for whole keys: `*` is any text without a dot, `**` any text, `?` one character but a
// dot, `[abc]`, `[a-z]`, `[!a]` one of a set.  Matching is linear in pattern and key.
// Throws: kUsage where a '[' is not closed.
class Glob {
 public:
  explicit Glob(std::string_view text);
  bool matches(std::string_view key) const;
  const std::string& text() const { return text_; }

 private:
  struct Token {
    enum class Kind { kLiteral, kSet, kOne, kWithinDots, kAny };
    Kind kind;
    char literal = 0;
    std::string set;  // every character that matches
  };
  static Token parse_set(std::string_view text, std::size_t& at);
  void add_star(Token::Kind kind);
  // Marks the position, and those after it that can be reached without a character.
  void reach(std::vector<char>& states, std::size_t position) const;

  std::string text_;
  std::vector<Token> tokens_;
};

// Throws: kUsage naming the first invalid glob.
std::vector<Glob> globs_of(const std::vector<std::string>& texts);
// Returns whether any glob matches.
bool any_matches(const std::vector<Glob>& globs, std::string_view key);

// Keys that a glob of `include` matches (all if it is empty) and no glob of `exclude`.
struct KeySelection {
  std::vector<Glob> include;
  std::vector<Glob> exclude;
  bool everything() const { return include.empty() && exclude.empty(); }
  bool selects(std::string_view key) const;
};

}  // namespace fsdp::formats
