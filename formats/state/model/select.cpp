// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/select.h"

#include <algorithm>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {
Glob::Token Glob::parse_set(std::string_view glob, std::size_t& at) {
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
    throw Error(ErrorCode::kUsage, "glob ", quote(glob), ": '[' at position ", open,
                " is not closed");
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

Glob::Glob(std::string_view text) : text_(text) {
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '[') {
      tokens_.push_back(parse_set(text, at));
    } else if (c == '*') {
      const bool twice = at + 1 < text.size() && text[at + 1] == '*';
      add_star(twice ? Token::Kind::kAny : Token::Kind::kWithinDots);
      at += twice ? 2 : 1;
    } else {
      tokens_.push_back({c == '?' ? Token::Kind::kOne : Token::Kind::kLiteral, c, {}});
      ++at;
    }
  }
}

// Adjacent stars are one token.
void Glob::add_star(Token::Kind kind) {
  const bool star = !tokens_.empty() && (tokens_.back().kind == Token::Kind::kAny ||
                                         tokens_.back().kind == Token::Kind::kWithinDots);
  if (!star) {
    tokens_.push_back({kind, 0, {}});
  } else if (kind == Token::Kind::kAny) {
    tokens_.back().kind = kind;
  }
}

void Glob::reach(std::vector<char>& states, std::size_t position) const {
  for (;; ++position) {
    states[position] = 1;
    if (position == tokens_.size()) return;
    const auto kind = tokens_[position].kind;
    if (kind != Token::Kind::kAny && kind != Token::Kind::kWithinDots) return;
  }
}

bool Glob::matches(std::string_view key) const {
  // A set of positions in the pattern moves along the key: no backtracking, so no pattern is slow.
  std::vector<char> now(tokens_.size() + 1, 0);
  std::vector<char> next(now.size(), 0);
  reach(now, 0);
  for (const char c : key) {
    std::ranges::fill(next, 0);
    for (std::size_t p = 0; p < tokens_.size(); ++p) {
      if (now[p] == 0) continue;
      switch (tokens_[p].kind) {
        case Token::Kind::kLiteral:
          if (tokens_[p].literal == c) reach(next, p + 1);
          break;
        case Token::Kind::kSet:
          if (tokens_[p].set.find(c) != std::string::npos) reach(next, p + 1);
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
    std::swap(now, next);
  }
  return now.back() != 0;
}

std::vector<Glob> globs_of(const std::vector<std::string>& texts) {
  return {texts.begin(), texts.end()};
}

bool any_matches(const std::vector<Glob>& globs, std::string_view key) {
  return std::ranges::any_of(globs, [&](const Glob& glob) { return glob.matches(key); });
}

bool KeySelection::selects(std::string_view key) const {
  return (include.empty() || any_matches(include, key)) && !any_matches(exclude, key);
}

}  // namespace fsdp::formats
