// SPDX-License-Identifier: Apache-2.0
#include "formats/families/flat/key_order.h"

#include <cstdint>
#include <variant>

namespace fsdp::formats::flat {

KeyOrder::KeyOrder(std::span<const Leaf> leaves, const std::vector<FlatModel>& models,
                   const ParameterList* list)
    : next_(leaves.size()) {
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const KeyPath& path = leaves[i].path;
    for (auto end = path.begin(); end != path.end(); ++end)
      positions_.try_emplace({path.begin(), end}, i);
    positions_.try_emplace(path, i);
  }
  for (const FlatModel& model : models) {
    auto& places = models_[model.place];
    const std::size_t step = model.members.size() + 1;  // room for what the list lacks
    if (list != nullptr) {
      for (std::size_t i = 0; i < list->parameters.size(); ++i)
        places.try_emplace(list->parameters[i].name, (i + 1) * step);
    }
    std::size_t last = 0;
    for (const FlatModel::Member& member : model.members)
      last = places.try_emplace(member.name, last + 1).first->second;
  }
}

bool KeyOrder::in_model(const KeyPath& path) const {
  return !path.empty() && std::holds_alternative<std::string>(path.back()) &&
         models_.contains({path.begin(), path.end() - 1});
}

KeyPlace KeyOrder::of(const KeyPath& path) {
  if (!in_model(path)) return {position_of(path), 0};
  const KeyPath place(path.begin(), path.end() - 1);
  const auto& places = models_.at(place);
  const auto found = places.find(std::get<std::string>(path.back()));
  return {position_of(place), found == places.end() ? SIZE_MAX : found->second};
}

std::size_t KeyOrder::position_of(const KeyPath& path) {
  const auto [at, fresh] = positions_.try_emplace(path, next_);
  if (fresh) ++next_;
  return at->second;
}

}  // namespace fsdp::formats::flat
