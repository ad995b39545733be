// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/edit/literal.h"

#include <charconv>
#include <string>
#include <vector>

#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

template <typename Number>
std::optional<Number> number_in(std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || at != end) return std::nullopt;
  return number;
}

std::optional<bool> truth_in(std::string_view text) {
  if (text == "True" || text == "true") return true;
  if (text == "False" || text == "false") return false;
  return std::nullopt;
}

// Returns the position after a quoted text that begins at `at`; nothing if the quotes do not end.
std::optional<std::size_t> behind_quotes(std::string_view text, std::size_t at) {
  const char quote = text[at];
  for (++at; at < text.size(); ++at) {
    if (text[at] == '\\') {
      ++at;
    } else if (text[at] == quote) {
      return at + 1;
    }
  }
  return std::nullopt;
}

bool is_quote(char c) {
  return c == '\'' || c == '"';
}

// Returns the text of an item of a sequence, without the quotes that Python writes if it has any.
// Knows the escapes of the backslash and of quotes; returns nothing for others.
std::optional<std::string> unquoted(std::string_view text) {
  if (text.empty() || !is_quote(text.front())) return std::string(text);
  if (behind_quotes(text, 0) != text.size()) return std::nullopt;
  std::string plain;
  for (std::size_t i = 1; i + 1 < text.size(); ++i) {
    if (text[i] == '\\' && text[++i] != '\\' && !is_quote(text[i])) return std::nullopt;
    plain += text[i];
  }
  return plain;
}

// Returns the texts of items between brackets; nothing if brackets are missing, or quotes do not
// end.  Items without quotes have no commas.
std::optional<std::vector<std::string_view>> items_in(std::string_view text, char open,
                                                      char close) {
  if (text.size() < 2 || text.front() != open || text.back() != close) return std::nullopt;
  text = trimmed(text.substr(1, text.size() - 2));
  // Python ends a tuple of one item with a comma.
  if (text.ends_with(',')) text.remove_suffix(1);
  std::vector<std::string_view> items;
  if (text.empty()) return items;
  for (std::size_t at = 0; at <= text.size();) {
    std::size_t begin = at;
    while (begin < text.size() && text[begin] == ' ') ++begin;
    if (begin < text.size() && is_quote(text[begin])) {
      const auto behind = behind_quotes(text, begin);
      if (!behind) return std::nullopt;
      begin = *behind;
    }
    const std::size_t end = std::min(text.find(',', begin), text.size());
    items.push_back(trimmed(text.substr(at, end - at)));
    at = end + 1;
  }
  return items;
}

std::optional<Value> sequence_like(const Value& like, std::string_view text) {
  const bool list = like.kind() == ValueKind::kList;
  const auto texts = items_in(text, list ? '[' : '(', list ? ']' : ')');
  const auto old = like.items();
  if (!texts || texts->size() != old.size()) return std::nullopt;
  std::vector<Value> items;
  for (std::size_t i = 0; i < old.size(); ++i) {
    const bool nested = !old[i].items().empty();
    const auto text_of_item = old[i].kind() == ValueKind::kString
                                  ? unquoted((*texts)[i])
                                  : std::optional(std::string((*texts)[i]));
    auto item = nested || !text_of_item ? std::nullopt : value_like(old[i], *text_of_item);
    if (!item) return std::nullopt;
    items.push_back(std::move(*item));
  }
  return list ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

}  // namespace

std::optional<Value> value_like(const Value& like, std::string_view text) {
  const std::string_view word = trimmed(text);
  switch (like.kind()) {
    case ValueKind::kNone:
      return word == "None" ? std::optional(Value()) : std::nullopt;
    case ValueKind::kBool: {
      const auto truth = truth_in(word);
      return truth ? std::optional(Value::boolean(*truth)) : std::nullopt;
    }
    case ValueKind::kInt: {
      const auto number = number_in<std::int64_t>(word);
      return number ? std::optional(Value::integer(*number)) : std::nullopt;
    }
    case ValueKind::kFloat: {
      const auto number = number_in<double>(word);
      return number ? std::optional(Value::floating(*number)) : std::nullopt;
    }
    case ValueKind::kString:
      return is_utf8(text) ? std::optional(Value::string(std::string(text))) : std::nullopt;
    case ValueKind::kList:
    case ValueKind::kTuple:
      return sequence_like(like, word);
    default:
      return std::nullopt;
  }
}

Value value_of_text(std::string_view text) {
  const std::string_view word = trimmed(text);
  if (word == "None") return {};
  if (word == "True" || word == "False") return Value::boolean(word == "True");
  if (const auto number = number_in<std::int64_t>(word)) return Value::integer(*number);
  if (const auto number = number_in<double>(word)) return Value::floating(*number);
  return Value::string(std::string(text));
}

std::string_view type_words(const Value& value) {
  switch (value.kind()) {
    case ValueKind::kNone:
      return "None";
    case ValueKind::kBool:
      return "a bool";
    case ValueKind::kInt:
    case ValueKind::kBigInt:
      return "an int";
    case ValueKind::kFloat:
      return "a float";
    case ValueKind::kString:
      return "a str";
    case ValueKind::kList:
      return "a list";
    case ValueKind::kTuple:
      return "a tuple";
    case ValueKind::kDict:
      return "a dict";
    default:
      return "an object";
  }
}

}  // namespace fsdp::formats
