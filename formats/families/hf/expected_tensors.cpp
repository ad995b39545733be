// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hf/expected_tensors.h"

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/families/hf/json_parts.h"
#include "formats/families/hf/layer_selection.h"
#include "formats/families/hf/name_pattern.h"

namespace fsdp::formats::hf {
namespace {

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
