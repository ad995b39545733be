// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/index.h"

namespace fsdp::formats {

BoxView ChunkList::box(std::size_t chunk) const {
  const std::span<const std::int64_t> all(numbers_);
  return {all.subspan(chunk * 2 * rank_, rank_), all.subspan(chunk * 2 * rank_ + rank_, rank_)};
}

void ChunkList::reserve(std::size_t count) {
  numbers_.reserve(count * 2 * rank_);
  locations_.reserve(count);
}

void ChunkList::add(std::span<const std::int64_t> offset, std::span<const std::int64_t> size,
                    const Location& location) {
  numbers_.insert(numbers_.end(), offset.begin(), offset.end());
  numbers_.insert(numbers_.end(), size.begin(), size.end());
  locations_.push_back(location);
}

void Index::add(TensorEntry tensor) {
  order.push_back({true, static_cast<std::uint32_t>(tensors.size())});
  tensors.push_back(std::move(tensor));
}

void Index::add(ValueEntry value) {
  order.push_back({false, static_cast<std::uint32_t>(values.size())});
  values.push_back(std::move(value));
}

std::string joined(const KeyPath& path) {
  std::string out;
  for (const PathStep& step : path) {
    if (!out.empty()) out += '.';
    if (const auto* key = std::get_if<std::string>(&step)) {
      out += *key;
    } else {
      out += std::to_string(std::get<std::int64_t>(step));
    }
  }
  return out;
}

}  // namespace fsdp::formats
