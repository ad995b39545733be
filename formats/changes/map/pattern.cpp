// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/map/pattern.h"

#include <algorithm>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats::map {
namespace {

// Enough for every key; the time of matching grows with captures times the key's length.
constexpr std::size_t kMaxCaptures = 8;

// Of 64 bits, also with an offset.
constexpr std::size_t kMaxDigits = 18;

bool is_name(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

bool is_whole_number(std::string_view text) {
  return !text.empty() && text.size() <= kMaxDigits && (text == "0" || text[0] != '0') &&
         std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

Error malformed(const std::string& pattern, const std::string& why) {
  return Error(ErrorCode::kUsage, cat("pattern ", quote(pattern, 200), " ", why));
}

}  // namespace

Pattern::Pattern(const std::string& text) : text_(text) {
  if (text.empty()) throw malformed(text, "is empty");
  if (text.size() > kMaxKeyBytes)
    throw malformed(text, cat("has ", text.size(), " bytes, at most ", kMaxKeyBytes));
  std::string literal;
  const auto end_literal = [&] {
    if (literal.empty()) return;
    Token token;
    token.text = std::exchange(literal, {});
    tokens_.push_back(std::move(token));
  };
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if ((c == '{' || c == '}') && at + 1 < text.size() && text[at + 1] == c) {
      literal += c;
      ++at;
    } else if (c == '}') {
      throw malformed(text, "has a '}' without a '{'");
    } else if (c == '{') {
      const std::size_t end = text.find('}', at);
      if (end == std::string::npos) throw malformed(text, "has a '{' without a '}'");
      end_literal();
      add_capture(text.substr(at + 1, end - at - 1));
      at = end;
    } else {
      literal += c;
    }
  }
  end_literal();
}

void Pattern::add_capture(const std::string& inside) {
  const std::size_t colon = inside.find(':');
  Token token;
  token.text = inside.substr(0, colon);
  const std::size_t plus = token.text.find('+');
  if (plus != std::string::npos) {
    token.offset = token.text.substr(plus + 1);
    token.text.resize(plus);
  }
  for (const std::string* name : {&token.text, &token.offset}) {
    if (is_name(*name) || (name == &token.offset && plus == std::string::npos)) continue;
    throw malformed(text_, cat("names a capture ", quote(inside.substr(0, colon)),
                               ", which is not of letters, digits and underscores"));
  }
  const std::string what = colon == std::string::npos ? "" : inside.substr(colon + 1);
  if (what == "int" || (plus != std::string::npos && colon == std::string::npos)) {
    token.kind = Kind::kInteger;
  } else if (plus != std::string::npos) {
    throw malformed(text_, cat("adds to {", token.text, "}, which is not restricted to integers"));
  } else if (colon == std::string::npos) {
    token.kind = Kind::kComponent;
  } else if (what == "**") {
    token.kind = Kind::kAnything;
  } else {
    token.kind = Kind::kOneOf;
    for (std::size_t at = 0; at <= what.size();) {
      const std::size_t end = std::min(what.find('|', at), what.size());
      token.choices.push_back(what.substr(at, end - at));
      if (token.choices.back().empty())
        throw malformed(text_, cat("restricts {", token.text, "} to an empty text"));
      at = end + 1;
    }
  }
  if (!tokens_.empty() && tokens_.back().kind != Kind::kLiteral)
    throw malformed(text_,
                    cat("has no text between capture {", token.text, "} and the one before it"));
  names_.insert(token.text);
  const auto captures =
      std::ranges::count_if(tokens_, [](const Token& t) { return t.kind != Kind::kLiteral; });
  if (static_cast<std::size_t>(captures) == kMaxCaptures)
    throw malformed(text_, cat("has more than ", kMaxCaptures, " captures"));
  tokens_.push_back(std::move(token));
}

// Tries the tokens one after the other.  Does not try again a place that failed, unless a repeated
// capture may change the result there.
class Pattern::Matcher {
 public:
  Matcher(const Pattern& pattern, std::string_view key)
      : tokens_(pattern.tokens_),
        key_(key),
        failed_(pattern.tokens_.size() * (key.size() + 1), false) {
    const auto captures = std::ranges::count_if(
        tokens_, [](const Token& token) { return token.kind != Kind::kLiteral; });
    repeats_ = static_cast<std::size_t>(captures) != pattern.names_.size();
  }

  std::optional<Captures> run() {
    if (!from(0, 0)) return std::nullopt;
    return std::move(captures_);
  }

 private:
  bool from(std::size_t token, std::size_t at) {
    if (token == tokens_.size()) return at == key_.size();
    const std::size_t place = token * (key_.size() + 1) + at;
    if (!repeats_ && failed_[place]) return false;
    if (++steps_ > kMaxSteps) return false;
    if (matches(tokens_[token], token, at)) return true;
    failed_[place] = true;
    return false;
  }

  bool matches(const Token& token, std::size_t number, std::size_t at) {
    const std::string_view rest = key_.substr(at);
    if (token.kind == Kind::kLiteral)
      return rest.starts_with(token.text) && from(number + 1, at + token.text.size());
    const auto known = captures_.find(token.text);
    if (known != captures_.end()) {
      const auto text = token.in_key(known->second);
      return text && rest.starts_with(*text) && from(number + 1, at + text->size());
    }
    if (token.kind == Kind::kOneOf) {
      return std::ranges::any_of(token.choices, [&](const auto& choice) {
        return rest.starts_with(choice) && take(token, number, at, choice.size());
      });
    }
    for (std::size_t length = 1; length <= rest.size(); ++length) {
      const char last = rest[length - 1];
      if (token.kind != Kind::kAnything && last == '.') return false;
      if (token.kind == Kind::kInteger && !is_whole_number(rest.substr(0, length))) return false;
      if (take(token, number, at, length)) return true;
    }
    return false;
  }

  bool take(const Token& token, std::size_t number, std::size_t at, std::size_t length) {
    auto capture = token.captured(key_.substr(at, length));
    if (!capture) return false;
    const auto [place, fresh] = captures_.emplace(token.text, *std::move(capture));
    if (from(number + 1, at + length)) return true;
    captures_.erase(place);
    return false;
  }

  // Only a pattern that is made to be slow takes as many steps.
  static constexpr std::size_t kMaxSteps = 1'000'000;

  const std::vector<Token>& tokens_;
  std::string_view key_;
  std::vector<bool> failed_;
  bool repeats_ = false;
  std::size_t steps_ = 0;
  Captures captures_;
};

std::optional<Captures> Pattern::match(std::string_view key) const {
  if (key.size() > kMaxKeyBytes) return std::nullopt;
  const Token& first = tokens_.front();
  if (first.kind == Kind::kLiteral && !key.starts_with(first.text)) return std::nullopt;
  const Token& last = tokens_.back();
  if (last.kind == Kind::kLiteral && !key.ends_with(last.text)) return std::nullopt;
  return Matcher(*this, key).run();
}

std::string Pattern::filled(const Captures& captures) const {
  std::string key;
  for (const Token& token : tokens_)
    key +=
        token.kind == Kind::kLiteral ? token.text : token.in_key(captures.at(token.text)).value();
  return key;
}

std::optional<std::string> Pattern::Token::in_key(const std::string& capture) const {
  if (offset.empty()) return capture;
  if (!is_whole_number(capture)) return std::nullopt;
  return std::to_string(std::stoll(capture) + added);
}

std::optional<std::string> Pattern::Token::captured(std::string_view digits) const {
  std::string capture(digits);
  if (offset.empty()) return capture;
  const std::int64_t number = std::stoll(capture);
  if (number < added) return std::nullopt;
  return std::to_string(number - added);
}

std::map<std::string, std::string> Pattern::offsets() const {
  std::map<std::string, std::string> offsets;
  for (const Token& token : tokens_) {
    if (!token.offset.empty()) offsets.emplace(token.offset, token.text);
  }
  return offsets;
}

void Pattern::set_offsets(const ParameterValue& parameter) {
  for (Token& token : tokens_) {
    if (!token.offset.empty()) token.added = parameter(token.offset);
  }
}

void Pattern::restrict_like(const Pattern& other) {
  for (Token& token : tokens_) {
    if (token.kind != Kind::kComponent) continue;
    for (const Token& like : other.tokens_) {
      if (like.kind == Kind::kLiteral || like.text != token.text) continue;
      token.kind = like.kind;
      token.choices = like.choices;
    }
  }
}

bool Pattern::is_integer(const std::string& name) const {
  const auto named = [&](const Token& token) {
    return token.kind != Kind::kLiteral && token.text == name;
  };
  return std::ranges::any_of(tokens_, named) &&
         std::ranges::all_of(tokens_, [&](const Token& token) {
           return !named(token) || token.kind == Kind::kInteger;
         });
}

}  // namespace fsdp::formats::map
