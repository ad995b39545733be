// SPDX-License-Identifier: Apache-2.0
#include "tools/command/completed_keys.h"

#include <algorithm>
#include <cctype>
#include <ostream>
#include <set>

#include "formats/bytes/base/budget.h"
#include "formats/bytes/base/text.h"
#include "formats/front/open.h"
#include "tools/base/memory_budget.h"

namespace fsdp::cli {
namespace {

bool is_plain_key(const std::string& key) {
  return std::all_of(key.begin(), key.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '-' ||
           c == '/';
  });
}

}  // namespace

std::vector<std::string> continued_keys(const std::vector<std::string>& keys,
                                        const std::string& prefix) {
  std::set<std::string, decltype(&formats::natural_less)> found(&formats::natural_less);
  for (const std::string& key : keys) {
    if (!key.starts_with(prefix) || !is_plain_key(key)) continue;
    const std::size_t dot = key.find('.', prefix.size());
    found.insert(dot == key.npos ? key : key.substr(0, dot + 1));
  }
  return {found.begin(), found.end()};
}

void print_keys(const std::vector<std::string>& words, std::ostream& out) {
  if (words.empty()) return;
  const formats::BudgetScope scope(budget_for(size_of({words[0]}), {}));
  const auto checkpoint = formats::open_checkpoint(words[0]);
  std::vector<std::string> keys;
  for (const auto& tensor : checkpoint->index().tensors) keys.push_back(tensor.key);
  for (const auto& value : checkpoint->index().values) keys.push_back(value.key);
  for (const std::string& key : continued_keys(keys, words.size() > 1 ? words[1] : std::string()))
    out << key << '\n';
}

}  // namespace fsdp::cli
