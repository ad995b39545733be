// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hf/open_patterns.h"

#include <algorithm>

#include "formats/families/hf/name_pattern.h"

namespace fsdp::formats::hf {
namespace {

// Returns the numbers that `name` has in the places of "{}".  Requires: `name` equals `pattern`
// except for numbers.
std::vector<std::int64_t> free_numbers(const std::string& pattern, const std::string& name) {
  const auto numbers = pattern_of(name).second;
  std::vector<std::int64_t> out;
  std::size_t at = 0;
  for (std::size_t begin = 0; begin <= pattern.size();) {
    const std::size_t end = std::min(pattern.find('.', begin), pattern.size());
    const std::string part = pattern.substr(begin, end - begin);
    if (part == "{}") {
      if (at < numbers.size()) out.push_back(numbers[at++]);
    } else if (!pattern_of(part).second.empty()) {
      ++at;
    }
    begin = end + 1;
  }
  return out;
}

}  // namespace

void OpenPatterns::add(const std::string& pattern, std::int64_t group) {
  auto& alike = patterns_[pattern_of(pattern).first];
  const bool known = std::any_of(alike.begin(), alike.end(),
                                 [&](const Pattern& one) { return one.text == pattern; });
  if (!known) alike.push_back({pattern, group});
}

const OpenPatterns::Pattern* OpenPatterns::find(const std::string& name) const {
  const auto alike = patterns_.find(pattern_of(name).first);
  if (alike == patterns_.end()) return nullptr;
  for (const Pattern& one : alike->second) {
    if (filled(one.text, free_numbers(one.text, name)) == name) return &one;
  }
  return nullptr;
}

bool OpenPatterns::match(const std::string& name) const {
  return find(name) != nullptr;
}

std::vector<std::string> OpenPatterns::missing(const std::set<std::string>& present) const {
  std::map<std::int64_t, std::vector<std::string>> groups;
  for (const auto& [text, alike] : patterns_) {
    for (const Pattern& one : alike) groups[one.group].push_back(one.text);
  }
  std::set<std::string> out;
  for (const std::string& name : present) {
    const Pattern* const own = find(name);
    if (own == nullptr || own->group == 0) continue;
    for (const std::string& other : groups[own->group]) {
      std::string beside = filled(other, free_numbers(own->text, name));
      if (!present.contains(beside)) out.insert(std::move(beside));
    }
  }
  return {out.begin(), out.end()};
}

}  // namespace fsdp::formats::hf
