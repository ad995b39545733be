// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hf/config_values.h"

#include <charconv>
#include <cmath>

#include "formats/families/hf/json_parts.h"

namespace fsdp::formats::hf {
namespace {

// Bounds the chain of defaults that refer to other defaults.
constexpr int kMaxDepth = 8;
// "layer_types.#" is the number of elements of the list "layer_types".
constexpr std::string_view kLengthOf = ".#";
// No size of a model is larger.
constexpr long double kMaxNumber = 1e15L;
// Tolerance of rounding down: far below the distance of a quotient of fields from the next whole
// number.
constexpr long double kNearlyWhole = 1e-9L;

std::optional<long double> number_of(const Json& value) {
  if (const auto* whole = value.as_int()) return static_cast<long double>(*whole);
  if (const auto* real = std::get_if<double>(&value.storage())) return *real;
  return std::nullopt;
}

bool is_true(const Json& value) {
  if (const bool* flag = value.as_bool()) return *flag;
  if (const auto number = number_of(value)) return *number != 0;
  if (const std::string* text = value.as_string()) return !text->empty();
  if (const Json::Array* list = value.as_array()) return !list->empty();
  return value.as_object() != nullptr && !value.as_object()->empty();
}

bool is_field(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

// The first field of an expression.
std::string_view first_field(std::string_view expression) {
  std::size_t begin = 0;
  while (begin < expression.size() && !is_field(expression[begin])) ++begin;
  return expression.substr(begin, expression.find_first_of("*/+-", begin) - begin);
}

}  // namespace

const Json* part_at(const Json& whole, std::string_view path) {
  const Json* at = &whole;
  while (at != nullptr && !path.empty()) {
    const std::size_t dot = path.find('.');
    const std::string_view part = path.substr(0, dot);
    path.remove_prefix(dot == std::string_view::npos ? path.size() : dot + 1);
    if (const Json::Array* list = at->as_array()) {
      std::size_t number = 0;
      const auto [end, failed] = std::from_chars(part.data(), part.data() + part.size(), number);
      const bool is_number = failed == std::errc() && end == part.data() + part.size();
      at = is_number && number < list->size() ? &(*list)[number] : nullptr;
    } else {
      at = at->find(part);
    }
  }
  return at;
}

std::optional<Json> ConfigValues::field(std::string_view path, int depth) const {
  const Json* found = part_at(config_, path);
  if (found != nullptr && !found->is_null()) return *found;
  if (path.ends_with(kLengthOf) && depth <= kMaxDepth) {
    const auto list = field(path.substr(0, path.size() - kLengthOf.size()), depth + 1);
    if (list && list->as_array() != nullptr)
      return Json(static_cast<std::uint64_t>(list->as_array()->size()));
  }
  // Older files have a field under another name.
  for (const auto& [other, own] : members_of(about_.find("alias"))) {
    const Json* same = text_of(own) == path ? part_at(config_, other) : nullptr;
    if (same != nullptr && !same->is_null()) return *same;
  }
  if (path == "num_labels") {
    const Json* names = config_.find("id2label");
    if (names != nullptr && names->as_object() != nullptr)
      return Json(static_cast<std::uint64_t>(names->as_object()->size()));
  }
  const Json* defaults = about_.find("defaults");
  const Json* known = defaults == nullptr ? nullptr : defaults->find(path);
  if (known == nullptr || depth > kMaxDepth) return std::nullopt;
  if (known->as_object() == nullptr) return *known;
  const Json* made = known->find("=");
  if (made == nullptr || made->as_string() == nullptr) return std::nullopt;
  const auto value = number(*made->as_string(), depth + 1);
  return value ? std::optional<Json>(Json(*value)) : std::nullopt;
}

std::optional<long double> ConfigValues::product(std::string_view term, int depth) const {
  long double result = 1;
  enum class Operation { kTimes, kOver, kOverRoundedDown } operation = Operation::kTimes;
  while (!term.empty()) {
    const std::size_t end = std::min(term.find_first_of("*/"), term.size());
    const std::string_view word = term.substr(0, end);
    std::optional<long double> value;
    if (!word.empty() && is_field(word[0])) {
      const auto found = field(word, depth);
      if (found) value = number_of(*found);
    } else {
      std::int64_t whole = 0;
      const auto [last, failed] = std::from_chars(word.data(), word.data() + word.size(), whole);
      if (failed == std::errc() && last == word.data() + word.size())
        value = static_cast<long double>(whole);
    }
    if (!value || (operation != Operation::kTimes && *value == 0)) return std::nullopt;
    result = operation == Operation::kTimes ? result * *value : result / *value;
    if (operation == Operation::kOverRoundedDown) result = std::floor(result + kNearlyWhole);
    if (end == term.size()) break;
    term.remove_prefix(end);
    operation = term.starts_with("//") ? Operation::kOverRoundedDown
                : term[0] == '/'       ? Operation::kOver
                                       : Operation::kTimes;
    term.remove_prefix(operation == Operation::kOverRoundedDown ? 2 : 1);
  }
  return result;
}

std::optional<std::int64_t> ConfigValues::number(std::string_view expression, int depth) const {
  if (const std::size_t bar = expression.find('|'); bar != std::string_view::npos) {
    const auto set = field(first_field(expression.substr(0, bar)), depth);
    if (!set) return std::nullopt;
    return set->is_null() ? number(expression.substr(bar + 1), depth)
                          : number(expression.substr(0, bar), depth);
  }
  long double sum = 0;
  while (!expression.empty()) {
    const bool negative = expression[0] == '-';
    if (negative || expression[0] == '+') expression.remove_prefix(1);
    const std::size_t end = std::min(expression.find_first_of("+-"), expression.size());
    const auto term = product(expression.substr(0, end), depth);
    if (!term) return std::nullopt;
    sum += negative ? -*term : *term;
    expression.remove_prefix(end);
  }
  if (!(sum >= 0 && sum <= kMaxNumber)) return std::nullopt;
  return static_cast<std::int64_t>(std::floor(sum + kNearlyWhole));
}

std::optional<bool> ConfigValues::holds(const Json& condition) const {
  const Json::Array* words = condition.as_array();
  if (words == nullptr || words->size() < 2 || (*words)[0].as_string() == nullptr ||
      (*words)[1].as_string() == nullptr)
    return std::nullopt;
  const std::string& word = *(*words)[0].as_string();
  const auto value = field(*(*words)[1].as_string());
  if (!value) return std::nullopt;
  if (word == "true") return is_true(*value);
  if (word == "false") return !is_true(*value);
  if (words->size() < 3) return std::nullopt;
  if (word == "==" || word == "!=") {
    const std::string* wanted = (*words)[2].as_string();
    const std::string* found = value->as_string();
    const bool same = wanted != nullptr && found != nullptr && *wanted == *found;
    return same == (word == "==");
  }
  if (word == "equals" || word == "differs") {
    const std::string* path = (*words)[2].as_string();
    const auto other = path != nullptr ? field(*path) : std::nullopt;
    if (!other) return std::nullopt;
    return (number_of(*value) == number_of(*other)) == (word == "equals");
  }
  const auto bound = number_of((*words)[2]);
  const auto number = number_of(*value);
  if (!bound) return std::nullopt;
  if (!number) return false;
  return word == ">" ? *number > *bound : *number < *bound;
}

}  // namespace fsdp::formats::hf
