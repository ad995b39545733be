// SPDX-License-Identifier: Apache-2.0
#include "formats/state/checkpoint/spill.h"

namespace fsdp::formats {

Spill::Range Spill::get(const std::string& file, std::uint64_t offset,
                        const std::function<void(const ByteSink&)>& fill) {
  const std::lock_guard lock(mutex_);
  if (!file_) file_ = std::make_shared<SpillFile>();
  const auto key = std::make_pair(file, offset);
  auto found = known_.find(key);
  if (found == known_.end()) {
    const std::uint64_t begin = file_->size();
    fill([&](std::span<const std::byte> bytes) { file_->append(bytes); });
    found = known_.emplace(key, std::make_pair(begin, file_->size() - begin)).first;
  }
  return {file_, found->second.first, found->second.second};
}

}  // namespace fsdp::formats
