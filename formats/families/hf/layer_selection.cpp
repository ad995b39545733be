// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hf/layer_selection.h"

#include "formats/families/hf/json_parts.h"

namespace fsdp::formats::hf {
namespace {

using Numbers = LayerSelection::Numbers;

std::string value_text(const Json& value) {
  return value.as_string() != nullptr ? *value.as_string() : to_text(value);
}

}  // namespace

std::optional<Numbers> LayerSelection::all_of(const Json::Array& predicates,
                                              std::size_t first) const {
  Numbers out = where([](std::int64_t) { return true; });
  for (std::size_t i = first; i < predicates.size(); ++i) {
    const auto found = one(list_of(&predicates[i]));
    if (!found) return std::nullopt;
    std::erase_if(out, [&](std::int64_t number) { return !found->contains(number); });
  }
  return out;
}

Numbers LayerSelection::where(const std::function<bool(std::int64_t)>& test) const {
  Numbers out;
  for (std::int64_t i = 0; i < count_; ++i) {
    if (test(i)) out.insert(out.end(), i);
  }
  return out;
}

std::optional<Numbers> LayerSelection::one(const Json::Array& words) const {
  if (words.empty()) return std::nullopt;
  const std::string& word = text_of(words[0]);
  if (word == "not") {
    const auto found = all_of(words, 1);
    if (!found) return std::nullopt;
    return where([&](std::int64_t i) { return !found->contains(i); });
  }
  if (words.size() == 1) return by_place(word);
  const auto value = values_.field(text_of(words[1]));
  if (!value) return std::nullopt;
  if (value->as_array() != nullptr) return by_list(word, *value->as_array(), words);
  if (value->as_int() == nullptr) return std::nullopt;
  if (words.size() == 2) return by_number(word, *value->as_int());
  const auto other = values_.field(text_of(words[2]));
  if (!other || other->as_int() == nullptr || *value->as_int() <= 0) return std::nullopt;
  const bool same = word == "% ==";
  return where([&](std::int64_t i) { return (i % *value->as_int() == *other->as_int()) == same; });
}

std::optional<Numbers> LayerSelection::by_place(const std::string& word) const {
  if (word == "> 0") return where([](std::int64_t i) { return i > 0; });
  if (word == "== 0") return where([](std::int64_t i) { return i == 0; });
  if (word == "< last") return where([&](std::int64_t i) { return i < count_ - 1; });
  if (word == "== last") return where([&](std::int64_t i) { return i == count_ - 1; });
  if (word == "even") return where([](std::int64_t i) { return i % 2 == 0; });
  if (word == "odd") return where([](std::int64_t i) { return i % 2 == 1; });
  return std::nullopt;
}

// "is": the layer's element is one of those listed; "in": its number is an element.
std::optional<Numbers> LayerSelection::by_list(const std::string& word, const Json::Array& list,
                                               const Json::Array& words) const {
  if (word == "is") {
    if (words.size() < 3 || static_cast<std::int64_t>(list.size()) < count_) return std::nullopt;
    std::set<std::string> kinds;
    for (const Json& kind : list_of(&words[2])) kinds.insert(value_text(kind));
    return where([&](std::int64_t i) {
      return kinds.contains(value_text(list[static_cast<std::size_t>(i)]));
    });
  }
  if (word != "in" && word != "not in") return std::nullopt;
  Numbers inside;
  for (const Json& element : list) {
    if (element.as_int() != nullptr) inside.insert(*element.as_int());
  }
  return where([&](std::int64_t i) { return inside.contains(i) == (word == "in"); });
}

std::optional<Numbers> LayerSelection::by_number(const std::string& word,
                                                 std::int64_t value) const {
  if (word == ">=") return where([&](std::int64_t i) { return i >= value; });
  if (word == "<") return where([&](std::int64_t i) { return i < value; });
  if (word == "==") return where([&](std::int64_t i) { return i == value; });
  if (word == "!=") return where([&](std::int64_t i) { return i != value; });
  if (word == ">= count-") return where([&](std::int64_t i) { return i >= count_ - value; });
  if (word == "< count-") return where([&](std::int64_t i) { return i < count_ - value; });
  if (value <= 0) return std::nullopt;
  if (word == "%") return where([&](std::int64_t i) { return i % value == 0; });
  if (word == "+1%") return where([&](std::int64_t i) { return (i + 1) % value == 0; });
  if (word == "not %") return where([&](std::int64_t i) { return i % value != 0; });
  if (word == "not +1%") return where([&](std::int64_t i) { return (i + 1) % value != 0; });
  return std::nullopt;
}

}  // namespace fsdp::formats::hf
