// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hf/expected_tensors.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/families/hf/json_parts.h"

namespace fsdp::formats::hf {
namespace {

std::string value_text(const Json& value) {
  return value.as_string() != nullptr ? *value.as_string() : to_text(value);
}

// Selects from layers 0 to count - 1.  Lifetime: the values outlive the object.
class LayerSelection {
 public:
  using Numbers = std::set<std::int64_t>;

  LayerSelection(const ConfigValues& values, std::int64_t count) : values_(values), count_(count) {}

  // Returns the layers for which all predicates [word, path, ...] from position `first` on hold;
  // nothing if the configuration does not tell.
  std::optional<Numbers> all_of(const Json::Array& predicates, std::size_t first = 0) const {
    Numbers out = where([](std::int64_t) { return true; });
    for (std::size_t i = first; i < predicates.size(); ++i) {
      const auto found = one(list_of(&predicates[i]));
      if (!found) return std::nullopt;
      std::erase_if(out, [&](std::int64_t number) { return !found->contains(number); });
    }
    return out;
  }

 private:
  Numbers where(const std::function<bool(std::int64_t)>& test) const {
    Numbers out;
    for (std::int64_t i = 0; i < count_; ++i) {
      if (test(i)) out.insert(out.end(), i);
    }
    return out;
  }

  std::optional<Numbers> one(const Json::Array& words) const {
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
    return where(
        [&](std::int64_t i) { return (i % *value->as_int() == *other->as_int()) == same; });
  }

  std::optional<Numbers> by_place(const std::string& word) const {
    if (word == "> 0") return where([](std::int64_t i) { return i > 0; });
    if (word == "== 0") return where([](std::int64_t i) { return i == 0; });
    if (word == "< last") return where([&](std::int64_t i) { return i < count_ - 1; });
    if (word == "== last") return where([&](std::int64_t i) { return i == count_ - 1; });
    if (word == "even") return where([](std::int64_t i) { return i % 2 == 0; });
    if (word == "odd") return where([](std::int64_t i) { return i % 2 == 1; });
    return std::nullopt;
  }

  // "is": the layer's element is one of those listed; "in": its number is an element; "+1 in": its
  // number counted from 1 is.
  std::optional<Numbers> by_list(const std::string& word, const Json::Array& list,
                                 const Json::Array& words) const {
    if (word == "is") {
      if (words.size() < 3 || static_cast<std::int64_t>(list.size()) < count_) return std::nullopt;
      std::set<std::string> kinds;
      for (const Json& kind : list_of(&words[2])) kinds.insert(value_text(kind));
      return where([&](std::int64_t i) {
        return kinds.contains(value_text(list[static_cast<std::size_t>(i)]));
      });
    }
    if (word != "in" && word != "not in" && word != "+1 in") return std::nullopt;
    const std::int64_t first = word == "+1 in" ? 1 : 0;
    Numbers inside;
    for (const Json& element : list) {
      if (element.as_int() != nullptr) inside.insert(*element.as_int());
    }
    return where([&](std::int64_t i) { return inside.contains(i + first) == (word != "not in"); });
  }

  std::optional<Numbers> by_number(const std::string& word, std::int64_t value) const {
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

  const ConfigValues& values_;
  std::int64_t count_;
};

// No model has as many tensors, or layers of one stack.
constexpr std::size_t kMaxTensors = 1'000'000;
constexpr std::int64_t kMaxLayers = 100'000;

[[noreturn]] void too_many(const std::string& pattern) {
  throw Error(ErrorCode::kLimitNodes, cat("config.json asks for more than ", kMaxTensors,
                                          " tensors ", quote(pattern, 200)));
}

}  // namespace

void ExpectedTensors::add(const std::string& pattern, const Json::Array& tail) {
  if (tail.size() < 4) return;
  ExpectedTensor tensor;
  tensor.required = tail[3].as_int() == nullptr || *tail[3].as_int() == 0;
  const std::int64_t group = tail.size() > 4 && tail[4].as_int() != nullptr ? *tail[4].as_int() : 0;
  for (const Json& condition : list_of(&tail[0])) {
    const auto holds = values_.holds(condition);
    if (holds && !*holds) return;
    if (!holds) tensor.required = false;
  }
  if (tail[2].as_array() != nullptr) {
    tensor.shape.emplace();
    for (const Json& size : *tail[2].as_array()) {
      const auto number =
          size.as_string() == nullptr ? std::nullopt : values_.number(*size.as_string());
      tensor.shape->push_back(number.value_or(-1));
    }
  }
  std::vector<std::vector<std::int64_t>> places = {{}};
  for (const Json& range : list_of(&tail[1])) {
    const Json::Array& words = list_of(&range);
    if (words.size() < 2) return;
    const auto count =
        words[0].as_string() == nullptr ? std::nullopt : values_.number(*words[0].as_string());
    if (!count) {
      // The numbers are not known: any of these tensors may be present.
      open_.add(pattern, group);
      return;
    }
    if (*count > kMaxLayers) too_many(pattern);
    const LayerSelection selection(values_, *count);
    auto chosen =
        words[1].as_array() == nullptr ? std::nullopt : selection.all_of(*words[1].as_array());
    if (!chosen) {
      tensor.required = false;
      chosen = selection.all_of({});
    }
    std::vector<std::vector<std::int64_t>> longer;
    if (places.size() * chosen->size() > kMaxTensors) too_many(pattern);
    for (const auto& place : places) {
      for (const std::int64_t number : *chosen) {
        longer.push_back(place);
        longer.back().push_back(number);
      }
    }
    places = std::move(longer);
  }
  if (out_.size() + places.size() > kMaxTensors) too_many(pattern);
  for (const auto& place : places) {
    if (group != 0) {
      tensor.company = cat(group, ":");
      for (const std::int64_t number : place) tensor.company += cat(number, ".");
    }
    out_.insert_or_assign(filled(pattern, place), tensor);
  }
}

}  // namespace fsdp::formats::hf
