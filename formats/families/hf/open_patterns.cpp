// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hf/open_patterns.h"

#include <algorithm>
#include <cstddef>

#include "formats/bytes/base/text.h"

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
  const bool known =
      std::ranges::any_of(alike, [&](const Pattern& one) { return one.text == pattern; });
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

std::string filled(const std::string& pattern, const std::vector<std::int64_t>& numbers) {
  std::string out;
  std::size_t at = 0;
  for (const std::int64_t number : numbers) {
    const std::size_t place = pattern.find("{}", at);
    if (place == std::string::npos) break;
    out += cat(pattern.substr(at, place - at), number);
    at = place + 2;
  }
  return out + pattern.substr(at);
}

std::pair<std::string, std::vector<std::int64_t>> pattern_of(const std::string& name) {
  std::pair<std::string, std::vector<std::int64_t>> out;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    const bool number = !part.empty() && part.size() <= 9 &&
                        part.find_first_not_of("0123456789") == std::string::npos;
    if (number) out.second.push_back(std::stoll(part));
    out.first += (begin == 0 ? "" : ".") + (number ? "{}" : part);
    begin = end + 1;
  }
  return out;
}

std::string translated(const std::map<std::string, std::string>& names, const std::string& name) {
  if (const auto found = names.find(name); found != names.end()) return found->second;
  const auto [pattern, numbers] = pattern_of(name);
  const auto found = names.find(pattern);
  return found == names.end() ? std::string() : filled(found->second, numbers);
}

}  // namespace fsdp::formats::hf
