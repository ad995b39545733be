// SPDX-License-Identifier: Apache-2.0
#include "formats/state/content/key_set.h"

#include <algorithm>
#include <utility>

namespace fsdp::formats {

KeySet::KeySet(std::vector<std::string> keys) : keys_(std::move(keys)) {
  std::ranges::sort(keys_);
}

bool KeySet::only_below(const std::string& key) const {
  if (key.empty()) return !keys_.empty() && !keys_.front().empty();
  if (std::ranges::binary_search(keys_, key)) return false;
  const std::string below = key + '.';
  const auto at = std::ranges::lower_bound(keys_, below);
  return at != keys_.end() && at->starts_with(below);
}

}  // namespace fsdp::formats
