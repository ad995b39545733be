// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/lora/module_pattern.h"

#include <functional>

namespace fsdp::formats {

namespace {

constexpr std::size_t kMaxStates = 2000;
constexpr std::size_t kMaxCount = 64;
constexpr std::size_t kMaxPatternNesting = 50;

bool is_count_digit(char c) {
  return c >= '0' && c <= '9';
}

std::bitset<256> character_range(char from, char to) {
  std::bitset<256> set;
  for (int c = static_cast<unsigned char>(from); c <= static_cast<unsigned char>(to); ++c)
    set.set(static_cast<std::size_t>(c));
  return set;
}

std::bitset<256> only(char c) {
  return character_range(c, c);
}

// Returns the set that a backslash and this character stand for; nothing if it is not a set.
std::optional<std::bitset<256>> escaped_set(char c) {
  const std::bitset<256> digits = character_range('0', '9');
  const std::bitset<256> word =
      digits | character_range('a', 'z') | character_range('A', 'Z') | only('_');
  const std::bitset<256> blanks = character_range('\t', '\r') | only(' ');
  switch (c) {
    case 'd':
      return digits;
    case 'D':
      return ~digits;
    case 'w':
      return word;
    case 'W':
      return ~word;
    case 's':
      return blanks;
    case 'S':
      return ~blanks;
    default:
      if (word.test(static_cast<unsigned char>(c))) return std::nullopt;
      return only(c);
  }
}

}  // namespace

// Builds the automaton from the end: each part gets the state that follows it.
class PatternParser {
 public:
  explicit PatternParser(std::string_view text) : text_(text) {}

  std::optional<ModulePattern> run() {
    using Kind = ModulePattern::State::Kind;
    const std::optional<Part> body = alternatives(0);
    if (!body || at_ != text_.size()) return std::nullopt;
    const std::size_t accept = state({Kind::kAccept});
    const std::size_t end = state({Kind::kEnd, {}, accept});
    const std::size_t own = (*body)(end);
    // (.*\.)? before it.
    const std::size_t dot = state({Kind::kCharacters, only('.'), own});
    const std::size_t loop = state({Kind::kSplit, {}, 0, dot});
    result_.states_[loop].next = state({Kind::kCharacters, any(), loop});
    result_.start_ = state({Kind::kSplit, {}, own, loop});
    if (too_many_) return std::nullopt;
    return std::move(result_);
  }

 private:
  // Makes the states of a part before the given state; returns the first of them.
  using Part = std::function<std::size_t(std::size_t)>;

  static std::bitset<256> any() { return ~only('\n'); }

  std::size_t state(ModulePattern::State made) {
    if (result_.states_.size() >= kMaxStates) {
      too_many_ = true;
      return 0;
    }
    result_.states_.push_back(made);
    return result_.states_.size() - 1;
  }
  bool more() const { return at_ < text_.size(); }
  bool take(char c) {
    if (!more() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  std::optional<Part> alternatives(std::size_t depth) {
    if (depth > kMaxPatternNesting) return std::nullopt;
    std::optional<Part> all = sequence(depth);
    while (all && take('|')) {
      const std::optional<Part> other = sequence(depth);
      if (!other) return std::nullopt;
      all = [this, first = *all, second = *other](std::size_t next) {
        const std::size_t one_way = first(next);
        const std::size_t other_way = second(next);
        return state({ModulePattern::State::Kind::kSplit, {}, one_way, other_way});
      };
    }
    return all;
  }

  std::optional<Part> sequence(std::size_t depth) {
    std::vector<Part> parts;
    while (more() && text_[at_] != '|' && text_[at_] != ')') {
      const std::optional<Part> part = repeated(depth);
      if (!part) return std::nullopt;
      parts.push_back(*part);
    }
    return [parts](std::size_t next) {
      for (std::size_t i = parts.size(); i-- > 0;) next = parts[i](next);
      return next;
    };
  }

  std::optional<Part> repeated(std::size_t depth) {
    std::optional<Part> part = single(depth);
    if (!part || !more()) return part;
    std::size_t least = 1;
    std::optional<std::size_t> most = 1;
    if (take('*')) {
      least = 0;
      most.reset();
    } else if (take('+')) {
      most.reset();
    } else if (take('?')) {
      least = 0;
    } else if (text_[at_] == '{') {
      if (!counts(least, most)) return std::nullopt;
    } else {
      return part;
    }
    take('?');  // which of several matches is found does not matter
    if (more() &&
        (text_[at_] == '*' || text_[at_] == '+' || text_[at_] == '?' || text_[at_] == '{'))
      return std::nullopt;
    return [this, once = *part, least, most](std::size_t next) {
      if (!most) {
        const std::size_t loop = state({ModulePattern::State::Kind::kSplit, {}, 0, next});
        if (too_many_) return loop;
        const std::size_t body = once(loop);
        result_.states_[loop].next = body;
        next = loop;
      } else {
        const std::size_t end = next;
        for (std::size_t i = least; i < *most && !too_many_; ++i)
          next = state({ModulePattern::State::Kind::kSplit, {}, once(next), end});
      }
      for (std::size_t i = 0; i < least && !too_many_; ++i) next = once(next);
      return next;
    };
  }

  bool number(std::size_t& out) {
    const std::size_t begin = at_;
    out = 0;
    while (more() && is_count_digit(text_[at_]) && out <= kMaxCount)
      out = out * 10 + static_cast<std::size_t>(text_[at_++] - '0');
    return at_ != begin && out <= kMaxCount;
  }

  // {3}, {3,}, {3,5}
  bool counts(std::size_t& least, std::optional<std::size_t>& most) {
    std::size_t last = 0;
    if (!take('{') || !number(least)) return false;
    most = least;
    if (take(',')) {
      most.reset();
      if (more() && text_[at_] != '}') {
        if (!number(last) || last < least) return false;
        most = last;
      }
    }
    return take('}');
  }

  std::optional<Part> single(std::size_t depth) {
    const char c = text_[at_++];
    switch (c) {
      case '.':
        return characters(any());
      case '^':
        return assertion(ModulePattern::State::Kind::kBegin);
      case '$':
        return assertion(ModulePattern::State::Kind::kEnd);
      case '(': {
        if (more() && text_[at_] == '?') {
          if (text_.substr(at_, 2) != "?:") return std::nullopt;
          at_ += 2;
        }
        std::optional<Part> inner = alternatives(depth + 1);
        if (!inner || !take(')')) return std::nullopt;
        return inner;
      }
      case '[':
        return bracketed();
      case '\\': {
        if (!more()) return std::nullopt;
        const auto set = escaped_set(text_[at_++]);
        if (!set) return std::nullopt;
        return characters(*set);
      }
      case ')':
      case '*':
      case '+':
      case '?':
      case '{':
        return std::nullopt;
      default:
        return characters(only(c));
    }
  }

  Part characters(const std::bitset<256>& set) {
    return [this, set](std::size_t next) {
      return state({ModulePattern::State::Kind::kCharacters, set, next});
    };
  }
  Part assertion(ModulePattern::State::Kind kind) {
    return [this, kind](std::size_t next) { return state({kind, {}, next}); };
  }

  std::optional<Part> bracketed() {
    const bool negated = take('^');
    std::bitset<256> set;
    for (bool first = true; first || (more() && text_[at_] != ']'); first = false) {
      if (!more()) return std::nullopt;
      const char from = text_[at_++];
      if (from == '\\') {
        if (!more()) return std::nullopt;
        const auto inner = escaped_set(text_[at_++]);
        if (!inner) return std::nullopt;
        set |= *inner;
        if (text_.substr(at_, 1) == "-" && text_.substr(at_, 2) != "-]") return std::nullopt;
        continue;
      }
      if (from == '[') return std::nullopt;
      if (at_ + 1 < text_.size() && text_[at_] == '-' && text_[at_ + 1] != ']') {
        const char to = text_[at_ + 1];
        if (to == '\\' || to < from) return std::nullopt;
        set |= character_range(from, to);
        at_ += 2;
        continue;
      }
      set |= only(from);
    }
    if (!take(']')) return std::nullopt;
    return characters(negated ? ~set : set);
  }

  std::string_view text_;
  std::size_t at_ = 0;
  bool too_many_ = false;
  ModulePattern result_;
};

std::optional<ModulePattern> ModulePattern::parse(std::string_view pattern) {
  for (const char c : pattern) {
    if (static_cast<unsigned char>(c) >= 0x80) return std::nullopt;
  }
  return PatternParser(pattern).run();
}

bool ModulePattern::matches(std::string_view module) const {
  std::vector<std::size_t> now;
  std::vector<std::size_t> seen(states_.size(), module.size() + 1);  // at which position
  std::vector<std::size_t> todo;
  bool accepted = false;
  const auto enter = [&](std::size_t first, std::size_t position, std::vector<std::size_t>& into) {
    todo.push_back(first);
    while (!todo.empty()) {
      const std::size_t at = todo.back();
      todo.pop_back();
      if (seen[at] == position) continue;
      seen[at] = position;
      const State& state = states_[at];
      if (state.kind == State::Kind::kAccept) accepted = true;
      if (state.kind == State::Kind::kCharacters) into.push_back(at);
      if (state.kind == State::Kind::kSplit) {
        todo.push_back(state.next);
        todo.push_back(state.other);
      }
      if ((state.kind == State::Kind::kBegin && position == 0) ||
          (state.kind == State::Kind::kEnd && position == module.size()))
        todo.push_back(state.next);
    }
  };
  enter(start_, 0, now);
  for (std::size_t position = 0; position < module.size(); ++position) {
    std::vector<std::size_t> next;
    for (const std::size_t at : now) {
      if (states_[at].characters.test(static_cast<unsigned char>(module[position])))
        enter(states_[at].next, position + 1, next);
    }
    now = std::move(next);
  }
  return accepted;
}

}  // namespace fsdp::formats
