// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hf/flat_models.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include "formats/state/content/placed_leaves.h"
#include "formats/state/content/tensor_value.h"

namespace fsdp::formats::hf {
namespace {

// Two modules of one tensor each are not models.
constexpr std::size_t kFewestTensors = 2;

using Shapes =
    std::map<std::string_view, std::vector<std::int64_t>>;  // by the name that follows a front

constexpr std::array<std::string_view, 5> kAverages = {"ema", "swa", "shadow", "average",
                                                       "averaged"};
constexpr std::array<std::string_view, 4> kOtherCopies = {"teacher", "student", "target",
                                                          "momentum"};

// Returns whether one of the words of a key is among `words`.
bool has_word(std::string_view key, std::span<const std::string_view> words) {
  while (!key.empty()) {
    const std::size_t end = std::min(key.find_first_of("_.-"), key.size());
    std::string word(key.substr(0, end));
    for (char& c : word) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    if (std::ranges::find(words, word) != words.end()) return true;
    key.remove_prefix(std::min(end + 1, key.size()));
  }
  return false;
}

// Returns what all names begin with, up to a dot: "model." of "model.net.w" and "model.ema.w".
std::size_t common_front(const std::vector<std::string_view>& names) {
  std::size_t front = 0;
  while (true) {
    const std::size_t dot = names[0].find('.', front);
    if (dot == names[0].npos) return front;
    const std::string_view next = names[0].substr(0, dot + 1);
    const bool all =
        std::ranges::all_of(names, [&](std::string_view name) { return name.starts_with(next); });
    if (!all) return front;
    front = dot + 1;
  }
}

// Returns whether `front` is `other` with a word appended: "net_ema" for "net", but not "block_2"
// for "block".
bool is_longer_by_a_word(std::string_view front, std::string_view other) {
  if (front.size() < other.size() + 2 || !front.starts_with(other) || front[other.size()] != '_')
    return false;
  const char first = front[other.size() + 1];
  return first < '0' || first > '9';
}

}  // namespace

bool is_average(std::string_view place) {
  return has_word(place, kAverages);
}

std::vector<std::string> flat_models(const Value& tensors) {
  std::vector<std::string_view> names;
  for (const auto& [key, value] : members_of(tensors)) names.emplace_back(*key.as_string());
  if (names.empty()) return {};
  const std::size_t front = common_front(names);
  std::map<std::string_view, Shapes> groups;
  for (const auto& [key, value] : members_of(tensors)) {
    const std::string_view name = *key.as_string();
    const std::size_t dot = name.find('.', front);
    const auto tensor = dense_tensor(value);
    if (dot != name.npos && tensor)
      groups[name.substr(0, dot)].emplace(name.substr(dot + 1), tensor->shape);
  }
  std::vector<std::string> found;
  for (const auto& [first, shapes] : groups) {
    if (shapes.size() < kFewestTensors || !found.empty()) continue;
    for (const auto& [other, others] : groups) {
      if (others == shapes) found.emplace_back(other);
    }
    const bool copies = found.size() > 1 && std::ranges::any_of(found, [&](const std::string& own) {
                          const std::string_view last =
                              std::string_view(own).substr(own.rfind('.') + 1);
                          return has_word(last, kAverages) || has_word(last, kOtherCopies) ||
                                 std::ranges::any_of(found, [&](const std::string& other) {
                                   return is_longer_by_a_word(own, other);
                                 });
                        });
    if (!copies) found.clear();
  }
  return found;
}

Value tensors_below(const Value& tensors, const std::string& front) {
  std::vector<Value::Entry> entries;
  for (const auto& [key, value] : members_of(tensors)) {
    const std::string& name = *key.as_string();
    if (name.size() > front.size() + 1 && name.starts_with(front) && name[front.size()] == '.')
      entries.emplace_back(Value::string(name.substr(front.size() + 1)), value);
  }
  return Value::dict(std::move(entries));
}

}  // namespace fsdp::formats::hf
