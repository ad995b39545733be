// SPDX-License-Identifier: Apache-2.0
#include "formats/state/content/key_set.h"

#include <algorithm>
#include <utility>

namespace fsdp::formats {

KeySet::KeySet(std::vector<std::string> keys) : keys_(std::move(keys)) {
  std::sort(keys_.begin(), keys_.end());
}

bool KeySet::only_below(const std::string& key) const {
  if (key.empty()) return !keys_.empty() && !keys_.front().empty();
  if (std::binary_search(keys_.begin(), keys_.end(), key)) return false;
  const std::string below = key + '.';
  const auto at = std::lower_bound(keys_.begin(), keys_.end(), below);
  return at != keys_.end() && at->starts_with(below);
}

}  // namespace fsdp::formats
