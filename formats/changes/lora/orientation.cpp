// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/lora/orientation.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <vector>

#include "formats/changes/lora/peft_names.h"
#include "formats/state/content/content.h"

namespace fsdp::formats {
namespace {

// Model types of transformers whose experts are declared as [in, out].
constexpr std::array<std::string_view, 4> kTransposedExperts = {"gpt_oss", "aria", "aria_text",
                                                                "openai_privacy_filter"};

// Returns whether the version is at least 0.19, the first that asks the class.
bool asks_class(std::string_view version) {
  int major = 0;
  int minor = 0;
  const char* const end = version.data() + version.size();
  const auto first = std::from_chars(version.data(), end, major);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != '.') return false;
  if (std::from_chars(first.ptr + 1, end, minor).ec != std::errc()) return false;
  return major > 0 || minor >= 19;
}

std::string bias_of(const std::string& weight_key) {
  return module_of(weight_key) + std::string(kBiasSuffix);
}

}  // namespace

const std::vector<std::int64_t>* Orientation::shape_of(const std::string& key) const {
  const auto found = leaves_.find(key);
  if (found == leaves_.end()) return nullptr;
  return &base_.index().tensors[*tensor_number(found->second.value)].shape;
}

const Orientation::Votes& Orientation::votes_below(const std::string& front) {
  const auto [at, fresh] = votes_.try_emplace(front);
  if (!fresh) return at->second;
  for (auto leaf = leaves_.lower_bound(front);
       leaf != leaves_.end() && leaf->first.starts_with(front); ++leaf) {
    if (!leaf->first.ends_with(kWeightSuffix)) continue;
    const auto& weight = *shape_of(leaf->first);
    if (weight.size() != 2 || weight[0] == weight[1]) continue;
    const auto* const bias = shape_of(bias_of(leaf->first));
    if (bias == nullptr || bias->size() != 1) continue;
    if ((*bias)[0] == weight[1]) ++at->second.turned;
    if ((*bias)[0] == weight[0]) ++at->second.straight;
  }
  return at->second;
}

std::optional<bool> Orientation::turned(const std::string& weight_key) {
  if (!weight_key.ends_with(kWeightSuffix) || shape_of(bias_of(weight_key)) == nullptr)
    return false;
  for (std::string front = module_of(weight_key);;) {
    front = module_of(front);
    const Votes& votes = votes_below(front.empty() ? front : front + ".");
    if ((votes.turned != 0) != (votes.straight != 0)) return votes.turned != 0;
    if (front.empty()) return std::nullopt;
  }
}

ExpertsOrder experts_order(const AdapterConfig& config, const std::string& model_type) {
  const bool transposed =
      std::ranges::find(kTransposedExperts, model_type) != kTransposedExperts.end();
  if (transposed) return {true, {}};
  if (config.version.empty())
    return {true,
            "[experts, in, out], as in peft before 0.19, because its configuration has no "
            "peft_version"};
  if (!asks_class(config.version)) return {true, {}};
  if (!model_type.empty()) return {false, {}};
  return {false, "[experts, out, in], as in most classes, because no config.json names the class"};
}

}  // namespace fsdp::formats
