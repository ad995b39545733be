// SPDX-License-Identifier: Apache-2.0
// Weights of GPTQ and AWQ.
#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <vector>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/arrays/computed.h"
#include "formats/changes/arrays/decode.h"
#include "formats/changes/arrays/dequantize.h"
#include "formats/changes/arrays/elementwise.h"
#include "formats/changes/arrays/rows.h"
#include "formats/changes/quantized/stored_weight.h"

namespace fsdp::formats::quantized {
namespace {

using arrays::Array;
using arrays::Code;
using arrays::Packing;

// Eight numbers in a word, as places from the lowest bits on.
constexpr std::array<std::uint8_t, 8> kAwqOrder = {0, 4, 1, 5, 2, 6, 3, 7};
constexpr std::uint64_t kMostInputs = 1U << 24U;

using Groups = std::shared_ptr<const std::vector<std::uint32_t>>;

// Returns the group of each input; null if the tensor does not hold that.
Groups groups_of(const Array& array, std::int64_t inputs, std::int64_t groups) {
  if (array.dtype != DType::kInt32 || array.shape != Shape{inputs} || numel_of(array) > kMostInputs)
    return nullptr;
  std::vector<std::int32_t> held(numel_of(array));
  arrays::ArrayReader(array).read(0, std::as_writable_bytes(std::span(held)));
  if (std::ranges::any_of(held, [&](std::int32_t one) { return one < 0 || one >= groups; }))
    return nullptr;
  return std::make_shared<const std::vector<std::uint32_t>>(held.begin(), held.end());
}

// Gives each input the scales and zero points of its group, unless groups follow each other.
void reorder(const Groups& groups, std::int64_t size, arrays::Dequantization& from) {
  bool follow = true;
  for (std::size_t i = 0; i < groups->size(); ++i)
    follow = follow && (*groups)[i] == i / static_cast<std::uint64_t>(size);
  if (follow) return;
  from.scales = arrays::chosen_rows(from.scales, groups);
  if (from.zeros) from.zeros = arrays::chosen_rows(*from.zeros, groups);
  from.grid.block_rows = 1;
}

// Returns a 1 for each number of a word, which GPTQ's first format takes off the whole word.
std::uint32_t ones(unsigned bits) {
  std::uint32_t word = 0;
  for (unsigned at = 0; at < 32; at += bits) word |= 1U << at;
  return word;
}

}  // namespace

Tried dequantized_by_inputs(Dialect dialect, const Scheme& scheme, const StoredWeight& weight,
                            DType to) {
  const bool gptq = dialect == Dialect::kGptq;
  const Array& words = weight.at(Role::kNumbers);
  const Array& scales = weight.at(Role::kScales);
  if (words.dtype != DType::kInt32 || words.shape.size() != 2)
    return unlike("qweight", words, "a matrix of int32");
  const std::int64_t each = 32 / scheme.bits;
  Shape shape = words.shape;
  std::int64_t& packed = shape[gptq ? 0 : 1];
  if (__builtin_mul_overflow(packed, each, &packed)) return "sizes exceed 64 bits";
  const std::int64_t size =
      scheme.columns < 0 ? std::max<std::int64_t>(shape[0], 1) : scheme.columns;
  arrays::Dequantization from{.scales = scales};
  from.grid.rows = static_cast<std::uint64_t>(shape[0]);
  from.grid.columns = static_cast<std::uint64_t>(shape[1]);
  from.grid.block_rows = static_cast<std::uint64_t>(size);
  const Shape expected = {static_cast<std::int64_t>(from.grid.scale_rows()), shape[1]};
  if (!is_floating(scales.dtype) || scales.shape != expected)
    return unlike("scales", scales, cat("floating ", shape_text(expected)));
  Packing packing{.code = Code::kUnsigned, .bits = scheme.bits, .first_dimension = gptq};
  if (!gptq) packing.order = kAwqOrder;
  arrays::check_bytes(shape, to);
  from.numbers = arrays::decoded(words, packing, shape);
  from.product = scales.dtype;
  from.to = to;
  const Shape zero_words = {expected[0], shape[1] / each};
  if (const Array* const zeros = weight.find(Role::kZeros)) {
    if (shape[1] % each != 0 || zeros->dtype != DType::kInt32 || zeros->shape != zero_words)
      return unlike("qzeros", *zeros, cat("int32 ", shape_text(zero_words)));
    packing.first_dimension = false;
    if (scheme.zeros_plus_one) packing.plus = ones(scheme.bits);
    from.zeros = arrays::decoded(*zeros, packing, expected);
  } else if (!scheme.symmetric) {
    return "no qzeros";
  } else {
    from.zeros = arrays::constant_array(DType::kFloat32, expected, 1 << (scheme.bits - 1));
  }
  if (const Array* const order = weight.find(Role::kOrder)) {
    const Groups groups = groups_of(*order, shape[0], expected[0]);
    if (!groups) return unlike("g_idx", *order, "a group for each input");
    reorder(groups, size, from);
  }
  return arrays::permuted(arrays::dequantized(from, shape), std::array<std::size_t, 2>{1, 0});
}

}  // namespace fsdp::formats::quantized
