// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/packed_codes.h"

#include "formats/bytes/base/cast.h"

namespace fsdp::formats {
namespace {

constexpr unsigned kSign = 0x80;

}  // namespace

std::span<const std::byte> spread_codes(DType dtype, std::span<const std::byte> elements,
                                        std::span<std::byte> out) {
  const auto item = static_cast<std::size_t>(item_bytes(dtype));
  const auto each = static_cast<std::size_t>(values_of_element(dtype));
  const auto bits = static_cast<unsigned>(8 * item / each);
  const unsigned sign = 1U << (bits - 1);
  const std::size_t count = elements.size() / item;
  for (std::size_t i = 0; i < count; ++i) {
    unsigned element = 0;
    for (std::size_t b = 0; b < item; ++b)
      element |= std::to_integer<unsigned>(elements[i * item + b]) << (8 * b);
    for (std::size_t v = 0; v < each; ++v) {
      const unsigned code = element >> (v * bits);
      out[i * each + v] = std::byte((code & (sign - 1)) | ((code & sign) != 0 ? kSign : 0U));
    }
  }
  return out.first(count * each);
}

void numbers_of_codes(DType dtype, std::span<const std::byte> codes, std::span<double> out) {
  const std::span<const float> values = values_by_code(dtype);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const auto code = std::to_integer<unsigned>(codes[i]);
    const float value = values[code & (kSign - 1)];
    out[i] = (code & kSign) != 0 ? -value : value;
  }
}

}  // namespace fsdp::formats
