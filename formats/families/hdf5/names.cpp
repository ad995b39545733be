// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hdf5/names.h"

#include <array>
#include <cstdio>
#include <string_view>
#include <utility>

#include "formats/bytes/base/text.h"

namespace fsdp::formats::hdf5 {
namespace {

std::string escaped(std::string_view name) {
  if (name.empty()) return "%";
  const bool utf8 = is_utf8(name);
  std::string out;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '/' || c == '%' || byte < 0x20 || byte == 0x7F || (byte >= 0x80 && !utf8)) {
      std::array<char, 4> hex{};
      std::snprintf(hex.data(), hex.size(), "%%%02X", byte);
      out += hex.data();
    } else {
      out += c;
    }
  }
  return out;
}

// A name of many dots could make thousands of groups, one for each step.  State dicts nest about
// ten deep.
constexpr std::size_t kMaxSteps = 64;
// State dicts have about one group for each two tensors.
constexpr std::size_t kGroupsPerName = 2;
constexpr std::size_t kFreeGroups = 1000;

}  // namespace

Path names_of(const KeyPath& path) {
  Path names;
  const auto add = [&names](std::string name) {
    if (names.size() < kMaxSteps) {
      names.push_back(std::move(name));
    } else {
      names.back() += "." + name;
    }
  };
  for (const PathStep& step : path) {
    if (const auto* number = std::get_if<std::int64_t>(&step)) {
      add(std::to_string(*number));
      continue;
    }
    std::string_view rest = std::get<std::string>(step);
    for (;;) {
      const std::size_t dot = rest.find('.');
      add(escaped(rest.substr(0, dot)));
      if (dot == std::string_view::npos) break;
      rest.remove_prefix(dot + 1);
    }
  }
  // A tensor or value that is the whole content.
  if (names.empty()) names.emplace_back("%");
  return names;
}

Places::Node& Places::child(Node& node, const std::string& name) {
  auto& place = node.children[name];
  if (place == nullptr) place = std::make_unique<Node>();
  return *place;
}

Places::Places(const std::vector<KeyPath>& tensors)
    : groups_left_(kFreeGroups + kGroupsPerName * tensors.size()) {
  for (const KeyPath& path : tensors) {
    Node* at = &keys_;
    for (const std::string& name : names_of(path)) at = &child(*at, name);
    at->is_tensor = true;
  }
  for (const KeyPath& path : tensors) {
    Path place = split(path);
    place.pop_back();
    Node* at = &places_;
    for (const std::string& name : place) {
      at = &child(*at, name);
      if (at->is_group) continue;
      at->is_group = true;
      if (groups_left_ > 0) {
        --groups_left_;
        continue;
      }
      are_joined_ = true;
      places_ = Node();
      return;
    }
  }
}

Path Places::split(const KeyPath& path) const {
  Path names = names_of(path);
  if (are_joined_) return {formats::joined(names, ".")};
  const Node* at = &keys_;
  for (std::size_t steps = 1; steps < names.size(); ++steps) {
    const auto next = at->children.find(names[steps - 1]);
    if (next == at->children.end()) break;
    at = next->second.get();
    if (!at->is_tensor) continue;
    std::string rest = formats::joined(std::span(names).subspan(steps - 1), ".");
    names.resize(steps);
    names.back() = std::move(rest);
    break;
  }
  return names;
}

// Returns `name`, with a number appended if needed, so that `taken` is false for it.
template <typename Taken>
std::string Places::free_name(Node& group, const std::string& name, const Taken& taken) {
  if (!taken(name)) return name;
  // Continues where the last search ended, so that thousands of equal names take linear time.
  std::size_t& copy = group.copies.try_emplace(name, 2).first->second;
  std::string numbered;
  do {
    numbered = cat(name, "#", copy++);
  } while (taken(numbered));
  return numbered;
}

Path Places::dataset(const KeyPath& path) {
  Path place = split(path);
  Node* group = &places_;
  for (std::size_t i = 0; i + 1 < place.size(); ++i) group = &child(*group, place[i]);
  place.back() = free_name(*group, place.back(), [&](const std::string& name) {
    const auto found = group->children.find(name);
    return found != group->children.end() && (found->second->is_dataset || found->second->is_group);
  });
  child(*group, place.back()).is_dataset = true;
  return place;
}

Path Places::attribute(const KeyPath& path) {
  Path place = split(path);
  // Each value adds to the groups that the tensors left.
  groups_left_ += kGroupsPerName;
  if (place.size() - 1 > groups_left_) place = {formats::joined(place, ".")};
  Node* group = &places_;
  for (std::size_t i = 0; i + 1 < place.size(); ++i) {
    // A "#" keeps the group apart from a dataset of the same name.
    while (child(*group, place[i]).is_dataset) place[i] += "#";
    group = &child(*group, place[i]);
    if (group->is_group) continue;
    group->is_group = true;
    --groups_left_;
  }
  place.back() = free_name(*group, place.back(), [&](const std::string& name) {
    return group->attributes.contains(name);
  });
  group->attributes.insert(place.back());
  return place;
}

}  // namespace fsdp::formats::hdf5
