// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hf/name_pattern.h"

#include <algorithm>
#include <cstddef>

#include "formats/bytes/base/text.h"

namespace fsdp::formats::hf {

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
