// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/lora/base_names.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <unordered_map>

namespace fsdp::formats {
namespace {

constexpr std::size_t kMaxRewrites = 8;
constexpr std::size_t kMaxSuffixes = 4'000'000;

// Returns whether a component of dotted names is a number.
bool numbers_inside(std::string_view name) {
  return std::ranges::any_of(words_of(name), [](std::string_view word) {
    return !word.empty() && word.find_first_not_of("0123456789") == word.npos;
  });
}

// The keys by each of their ends.  An end that more than kMaxKeys keys share does not tell the key.
constexpr std::size_t kMaxKeys = 8;
using Ends = std::unordered_map<std::string_view, std::vector<const std::string*>>;

Ends ends_of(const std::map<std::string, Leaf>& leaves) {
  Ends ends;
  for (const auto& [key, leaf] : leaves) {
    std::string_view end = key;
    for (;;) {
      std::vector<const std::string*>& keys = ends[end];
      if (keys.size() <= kMaxKeys) keys.push_back(&key);
      const std::size_t dot = end.find('.');
      if (dot == end.npos || ends.size() > kMaxSuffixes) break;
      end.remove_prefix(dot + 1);
    }
  }
  return ends;
}

// Returns how many components two beginnings have in common.
std::size_t in_common(std::string_view one, std::string_view other) {
  auto a = words_of(one);
  auto b = words_of(other);
  std::ranges::sort(a);
  std::ranges::sort(b);
  std::vector<std::string_view> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both.size() - 1;  // both end in a dot, or are empty
}

// Returns the beginnings of a name and of its key, before their longest common end:
// "model.language_model." and "language_model.model.".  If several keys have that end, as the
// layers of a text model and of a vision model do, chooses the key whose beginning has most
// components in common with the name's.
std::optional<std::pair<std::string, std::string>> rewrite_of(const std::string& name,
                                                              const Ends& ends) {
  for (std::size_t begin = 0;;) {
    const std::string_view end = std::string_view(name).substr(begin);
    const auto found = ends.find(end);
    if (found != ends.end()) {
      if (found->second.size() > kMaxKeys) return std::nullopt;
      const std::string front = name.substr(0, begin);
      std::vector<std::string> best;
      std::size_t most = 0;
      for (const std::string* const key : found->second) {
        std::string own = key->substr(0, key->size() - end.size());
        const std::size_t common = in_common(front, own);
        if (common > most) best.clear();
        if (common < most) continue;
        most = common;
        best.push_back(std::move(own));
      }
      if (best.size() != 1 || numbers_inside(front) || numbers_inside(best.front()))
        return std::nullopt;
      return std::pair(front, best.front());
    }
    const std::size_t dot = name.find('.', begin);
    // An end has at least a module and its parameter.
    if (dot == name.npos || name.find('.', dot + 1) == name.npos) return std::nullopt;
    begin = dot + 1;
  }
}

bool find_rewrites(const std::vector<WantedName>& wanted, const std::map<std::string, Leaf>& leaves,
                   BaseNames& names) {
  const Ends ends = ends_of(leaves);
  std::map<std::string, std::string> rewrites;
  std::map<std::string, std::string> taken;  // key -> name
  for (const WantedName& want : wanted) {
    const auto pair = rewrite_of(want.name, ends);
    if (!pair) return false;
    const auto [at, fresh] = rewrites.insert(*pair);
    if (!fresh && at->second != pair->second) return false;
    const std::string key = pair->second + want.name.substr(pair->first.size());
    const auto [own, first] = taken.try_emplace(key, want.name);
    if (!first && own->second != want.name) return false;
  }
  if (rewrites.size() > kMaxRewrites) return false;
  names.rewrites.assign(rewrites.begin(), rewrites.end());
  std::ranges::stable_sort(
      names.rewrites, [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
  // The rewrites must lead each name to a key again.
  return std::ranges::all_of(
      wanted, [&](const WantedName& want) { return leaves.contains(names.key_of(want.name)); });
}

}  // namespace

std::vector<std::string_view> words_of(std::string_view key) {
  std::vector<std::string_view> words;
  for (std::size_t dot = key.find('.'); dot != key.npos; dot = key.find('.')) {
    words.push_back(key.substr(0, dot));
    key.remove_prefix(dot + 1);
  }
  words.push_back(key);
  return words;
}

std::string BaseNames::key_of(std::string_view name) const {
  for (const auto& [from, to] : rewrites) {
    if (name.starts_with(from)) return to + std::string(name.substr(from.size()));
  }
  return prefix + std::string(name);
}

BaseNaming find_base_names(const std::vector<WantedName>& wanted,
                           const std::map<std::string, Leaf>& leaves) {
  BaseNaming naming;
  if (wanted.empty()) return naming;
  const std::string& first = wanted.front().name;
  std::vector<std::string> prefixes;
  for (const auto& [key, leaf] : leaves) {
    if (key == first || key.ends_with("." + first))
      prefixes.push_back(key.substr(0, key.size() - first.size()));
  }
  for (std::size_t i = 0; i < wanted.size() && naming.lacking < 0; ++i) {
    const std::vector<std::string> before = prefixes;
    std::erase_if(prefixes, [&](const std::string& prefix) {
      return !leaves.contains(prefix + wanted[i].name);
    });
    if (!prefixes.empty()) continue;
    naming.lacking = static_cast<std::ptrdiff_t>(i);
    naming.lacking_key = before.empty() ? wanted[i].name : before.front() + wanted[i].name;
  }
  if (naming.lacking < 0) {
    naming.names.prefix = prefixes.front();
    if (prefixes.size() > 1) naming.several = std::move(prefixes);
    return naming;
  }
  BaseNames names;
  if (!find_rewrites(wanted, leaves, names)) return naming;
  naming.names = std::move(names);
  naming.lacking = -1;
  return naming;
}

KeyPath path_beside(const Leaf& beside, const std::string& key) {
  KeyPath path;
  std::string rest = key;
  const auto name_at = [&](std::size_t depth) {
    return depth < beside.path.size() ? std::get_if<std::string>(&beside.path[depth]) : nullptr;
  };
  while (path.size() + 1 < beside.path.size() && name_at(path.size()) != nullptr &&
         rest.starts_with(*name_at(path.size()) + ".")) {
    rest.erase(0, name_at(path.size())->size() + 1);
    path.push_back(beside.path[path.size()]);
  }
  const std::string* const next = name_at(path.size());
  const bool split = next == nullptr || next->find('.') == next->npos;
  for (std::size_t dot = rest.find('.'); split && dot != rest.npos; dot = rest.find('.')) {
    path.emplace_back(rest.substr(0, dot));
    rest.erase(0, dot + 1);
  }
  path.emplace_back(std::move(rest));
  return path;
}

}  // namespace fsdp::formats
