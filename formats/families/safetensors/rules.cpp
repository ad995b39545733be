// SPDX-License-Identifier: Apache-2.0
#include "formats/families/safetensors/rules.h"

#include <algorithm>
#include <numeric>

namespace fsdp::formats::safetensors {

std::uint64_t item_bits(DType dtype) noexcept {
  return dtype == DType::kFloat4E2M1FNx2 ? 4 : 8 * item_bytes(dtype);
}

std::optional<std::uint64_t> total_bits(DType dtype, std::span<const std::int64_t> shape) noexcept {
  std::uint64_t bits = 1;
  for (const std::int64_t size : shape) {
    if (__builtin_mul_overflow(bits, static_cast<std::uint64_t>(size), &bits)) return std::nullopt;
  }
  if (__builtin_mul_overflow(bits, item_bits(dtype), &bits)) return std::nullopt;
  return bits;
}

std::optional<std::size_t> find_duplicate(const std::vector<std::string_view>& names) {
  std::vector<std::size_t> order(names.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const int difference = names[a].compare(names[b]);
    return difference != 0 ? difference < 0 : a < b;
  });
  const auto same =
      std::adjacent_find(order.begin(), order.end(),
                         [&](std::size_t a, std::size_t b) { return names[a] == names[b]; });
  if (same == order.end()) return std::nullopt;
  return *std::next(same);
}

}  // namespace fsdp::formats::safetensors
