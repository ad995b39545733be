// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/box.h"

#include <algorithm>

namespace fsdp::formats {

Box whole_box(std::span<const std::int64_t> shape) {
  return {std::vector<std::int64_t>(shape.size(), 0), {shape.begin(), shape.end()}};
}

std::uint64_t volume(BoxView box) {
  std::uint64_t result = 1;
  for (const std::int64_t size : box.size) result *= static_cast<std::uint64_t>(size);
  return result;
}

std::optional<Box> intersect(BoxView a, BoxView b) {
  Box result;
  result.offset.reserve(a.rank());
  result.size.reserve(a.rank());
  for (std::size_t d = 0; d < a.rank(); ++d) {
    const std::int64_t begin = std::max(a.offset[d], b.offset[d]);
    const std::int64_t end = std::min(a.offset[d] + a.size[d], b.offset[d] + b.size[d]);
    if (begin >= end) return std::nullopt;
    result.offset.push_back(begin);
    result.size.push_back(end - begin);
  }
  return result;
}

std::optional<ElementRange> reach_in(BoxView box, BoxView part) {
  const std::optional<Box> common = intersect(box, part);
  if (!common || volume(common->view()) == 0) return std::nullopt;
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  for (std::size_t d = 0; d < box.rank(); ++d) {
    const auto size = static_cast<std::uint64_t>(box.size[d]);
    const auto at = static_cast<std::uint64_t>(common->offset[d] - box.offset[d]);
    first = first * size + at;
    last = last * size + at + static_cast<std::uint64_t>(common->size[d]) - 1;
  }
  return ElementRange{first, last - first + 1};
}

std::string box_text(BoxView box) {
  std::string out = "[";
  for (std::size_t d = 0; d < box.rank(); ++d) {
    if (d != 0) out += ", ";
    out += std::to_string(box.offset[d]) + ":";
    std::int64_t end = 0;
    // Boxes of damaged files may end beyond the range of a number.
    if (__builtin_add_overflow(box.offset[d], box.size[d], &end)) {
      out += "+" + std::to_string(box.size[d]);
    } else {
      out += std::to_string(end);
    }
  }
  return out + "]";
}

std::vector<std::int64_t> row_major_strides(std::span<const std::int64_t> shape) {
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<std::int64_t>(shape[d], 1);
  }
  return strides;
}

}  // namespace fsdp::formats
