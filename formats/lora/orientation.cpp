// SPDX-License-Identifier: Apache-2.0
#include "formats/lora/orientation.h"

#include <string_view>
#include <vector>

#include "formats/content/content.h"

namespace fsdp::formats {
namespace {

constexpr std::string_view kWeightEnd = ".weight";

std::string bias_of(const std::string& weight_key) {
  return weight_key.substr(0, weight_key.size() - kWeightEnd.size()) + ".bias";
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
    if (!leaf->first.ends_with(kWeightEnd)) continue;
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
  if (!weight_key.ends_with(kWeightEnd) || shape_of(bias_of(weight_key)) == nullptr) return false;
  std::string front = weight_key.substr(0, weight_key.size() - kWeightEnd.size());
  for (;;) {
    const std::size_t dot = front.rfind('.');
    front.resize(dot == front.npos ? 0 : dot);
    const Votes& votes = votes_below(front.empty() ? front : front + ".");
    if ((votes.turned != 0) != (votes.straight != 0)) return votes.turned != 0;
    if (front.empty()) return std::nullopt;
  }
}

}  // namespace fsdp::formats
