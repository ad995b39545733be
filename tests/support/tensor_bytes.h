// SPDX-License-Identifier: Apache-2.0
// Returns the elements of a tensor of a checkpoint, dense, row-major and little-endian: chunk by
// chunk, element by element.
#pragma once

#include <algorithm>
#include <vector>

#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::test {

inline std::vector<std::byte> tensor_bytes(const formats::Checkpoint& checkpoint,
                                           const formats::TensorEntry& tensor) {
  using formats::row_major_strides;
  const auto item = static_cast<std::size_t>(formats::item_bytes(tensor.dtype));
  std::vector<std::byte> whole(tensor.bytes());
  std::vector<std::byte> scratch(1U << 20U);
  const std::vector<std::int64_t> strides = row_major_strides(tensor.shape);
  for (std::size_t c = 0; c < tensor.chunks.size(); ++c) {
    const formats::BoxView box = tensor.chunks.box(c);
    const std::uint64_t count = formats::volume(box);
    if (count == 0) continue;
    const formats::ChunkData data = checkpoint.chunk(tensor, c);
    std::vector<std::byte> part(count * item);
    const std::vector<std::int64_t> zeros(box.rank(), 0);
    const std::vector<std::int64_t> part_strides = row_major_strides(box.size);
    formats::gather(data, box.size, zeros, box.size, part, part_strides, scratch);
    formats::transform_elements(data, part);
    for (std::size_t i = 0; i < count; ++i) {
      std::int64_t at = 0;
      for (std::size_t d = 0; d < box.rank(); ++d) {
        at += (box.offset[d] + static_cast<std::int64_t>(i) / part_strides[d] % box.size[d]) *
              strides[d];
      }
      std::copy_n(part.begin() + static_cast<std::ptrdiff_t>(i * item), item,
                  whole.begin() + at * static_cast<std::ptrdiff_t>(item));
    }
  }
  return whole;
}

}  // namespace fsdp::test
