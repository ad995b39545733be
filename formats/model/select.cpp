// SPDX-License-Identifier: Apache-2.0
#include "formats/model/select.h"

#include <algorithm>

#include "formats/base/error.h"
#include "formats/base/text.h"

namespace fsdp::formats {
namespace {

// One step of a compiled glob.
struct Token {
  enum class Kind { kLiteral, kSet, kOne, kWithinDots, kAny };
  Kind kind;
  char literal = 0;
  std::string set;  // every character that matches
};

Token parse_set(std::string_view glob, std::size_t& at) {
  const std::size_t open = at++;
  Token token{Token::Kind::kSet, 0, {}};
  const bool negated = at < glob.size() && glob[at] == '!';
  if (negated) ++at;
  std::string members;
  bool first = true;
  for (; at < glob.size() && (first || glob[at] != ']'); first = false) {
    const auto low = static_cast<unsigned char>(glob[at]);
    auto high = low;
    if (at + 2 < glob.size() && glob[at + 1] == '-' && glob[at + 2] != ']') {
      high = static_cast<unsigned char>(glob[at + 2]);
      at += 2;
    }
    for (unsigned c = low; c <= high; ++c) members += static_cast<char>(c);
    ++at;
  }
  if (at >= glob.size()) {
    throw Error(ErrorCode::kUsage,
                cat("glob ", quote(glob), ": '[' at position ", open, " is not closed"));
  }
  ++at;
  if (!negated) {
    token.set = std::move(members);
  } else {
    for (unsigned c = 1; c < 256; ++c) {
      if (members.find(static_cast<char>(c)) == std::string::npos)
        token.set += static_cast<char>(c);
    }
  }
  return token;
}

std::vector<Token> compile(std::string_view glob) {
  std::vector<Token> tokens;
  for (std::size_t at = 0; at < glob.size();) {
    const char c = glob[at];
    if (c == '[') {
      tokens.push_back(parse_set(glob, at));
    } else if (c == '*') {
      const bool twice = at + 1 < glob.size() && glob[at + 1] == '*';
      tokens.push_back({twice ? Token::Kind::kAny : Token::Kind::kWithinDots, 0, {}});
      at += twice ? 2 : 1;
    } else {
      tokens.push_back({c == '?' ? Token::Kind::kOne : Token::Kind::kLiteral, c, {}});
      ++at;
    }
  }
  return tokens;
}

}  // namespace

bool glob_matches(std::string_view glob, std::string_view key) {
  // A set of positions in the pattern moves along the key: no backtracking, so no pattern is slow.
  const std::vector<Token> tokens = compile(glob);
  std::vector<char> now(tokens.size() + 1, 0);
  const auto reach = [&](std::vector<char>& states, std::size_t position) {
    for (;; ++position) {
      states[position] = 1;
      if (position == tokens.size()) return;
      const auto kind = tokens[position].kind;
      if (kind != Token::Kind::kAny && kind != Token::Kind::kWithinDots) return;
    }
  };
  reach(now, 0);
  for (const char c : key) {
    std::vector<char> next(tokens.size() + 1, 0);
    for (std::size_t p = 0; p < tokens.size(); ++p) {
      if (now[p] == 0) continue;
      switch (tokens[p].kind) {
        case Token::Kind::kLiteral:
          if (tokens[p].literal == c) reach(next, p + 1);
          break;
        case Token::Kind::kSet:
          if (tokens[p].set.find(c) != std::string::npos) reach(next, p + 1);
          break;
        case Token::Kind::kOne:
          if (c != '.') reach(next, p + 1);
          break;
        case Token::Kind::kWithinDots:
          if (c != '.') reach(next, p);
          break;
        case Token::Kind::kAny:
          reach(next, p);
          break;
      }
    }
    now = std::move(next);
  }
  return now.back() != 0;
}

bool KeySelection::selects(std::string_view key) const {
  const auto matches = [&](const std::string& glob) { return glob_matches(glob, key); };
  const bool included = include.empty() || std::any_of(include.begin(), include.end(), matches);
  return included && std::none_of(exclude.begin(), exclude.end(), matches);
}

}  // namespace fsdp::formats
