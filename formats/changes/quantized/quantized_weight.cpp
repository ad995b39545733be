// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/quantized/quantized_weight.h"

#include <cstring>

#include "formats/bytes/base/text.h"
#include "formats/changes/arrays/elementwise.h"
#include "formats/changes/arrays/pack.h"
#include "formats/changes/arrays/quantize.h"
#include "formats/changes/quantized/quantizers.h"

namespace fsdp::formats::quantized {
namespace {

using arrays::Array;

// Returns whether numbers lie in words of 32 bits.
bool in_words(Dialect dialect, const Scheme& scheme) {
  return dialect == Dialect::kCompressedTensors && scheme.numbers == NumberKind::kInteger &&
         scheme.sharing == Sharing::kGroups;
}

// Returns whether a byte holds numbers of two rows.
bool of_two_rows(Dialect dialect, const Scheme& scheme) {
  return dialect == Dialect::kModelOpt && scheme.numbers == NumberKind::kInteger &&
         scheme.bits == 4;
}

DType scale_dtype(Dialect dialect, const Scheme& scheme, DType weight) {
  if (scheme.powers) return DType::kUInt8;
  if (scheme.second_scale) return DType::kFloat8E4M3FN;
  return dialect == Dialect::kCompressedTensors ? weight : DType::kFloat32;
}

// Returns the shape that a dialect gives to scales.
Shape shape_of_scales(Dialect dialect, const Scheme& scheme, Shape scales) {
  if (dialect == Dialect::kCompressedTensors && scheme.sharing == Sharing::kTensor) return {1};
  if (dialect != Dialect::kModelOpt) return scales;
  if (scheme.sharing == Sharing::kRows) scales.pop_back();
  if (scheme.sharing == Sharing::kBlocks) {
    if (volume({scales, scales}) == 1) return {};
    scales.insert(scales.end() - 1, 1);
    scales.push_back(1);
  }
  return scales;
}

Array numbers_of(Dialect dialect, const Scheme& scheme, const arrays::Quantization& from) {
  const DType dtype = number_dtype(dialect, scheme);
  const bool alone = scheme.bits == 8 && !in_words(dialect, scheme);
  const Array codes = arrays::quantized_numbers(from, alone ? dtype : DType::kUInt8);
  return alone ? codes : arrays::packed(codes, scheme.bits, dtype, of_two_rows(dialect, scheme));
}

}  // namespace

bool is_packed(Dialect dialect, const Scheme& scheme) {
  return dialect == Dialect::kCompressedTensors && (scheme.bits == 4 || in_words(dialect, scheme));
}

DType number_dtype(Dialect dialect, const Scheme& scheme) {
  if (in_words(dialect, scheme)) return DType::kInt32;
  if (scheme.bits != 8) return DType::kUInt8;
  return scheme.numbers == NumberKind::kFloat ? DType::kFloat8E4M3FN : DType::kInt8;
}

std::vector<Role> roles_of(Dialect dialect, const Scheme& scheme) {
  std::vector<Role> out = {Role::kNumbers, Role::kScales};
  if (!scheme.symmetric) out.push_back(Role::kZeros);
  if (scheme.second_scale) out.push_back(Role::kSecond);
  if (in_words(dialect, scheme)) out.push_back(Role::kShape);
  return out;
}

std::string unfit(Dialect dialect, const Scheme& scheme, const Shape& shape) {
  if (shape.size() < least_rank(scheme))
    return cat("needs at least ", least_rank(scheme), " dimensions");
  if (dialect == Dialect::kTransformersFp8) return {};
  if (volume({shape, shape}) == 0) return "needs elements";
  if (scheme.sharing == Sharing::kGroups && shape.back() % scheme.columns != 0)
    return cat("needs rows of a multiple of ", scheme.columns);
  const bool two_rows = of_two_rows(dialect, scheme);
  if ((two_rows || !scheme.symmetric) && shape.size() != 2) return "needs two dimensions";
  if (two_rows && shape[0] % 2 != 0) return "needs an even number of rows";
  return {};
}

StoredWeight quantized_weight(Dialect dialect, const Scheme& scheme, const Array& weight,
                              float tensor_most) {
  const bool modelopt = dialect == Dialect::kModelOpt;
  const ScaledShape cut = scaled_shape(scheme, weight.shape);
  const Shape scales = shape_of_scales(dialect, scheme, cut.scales);
  const arrays::Quantization from{weight, cut.grid,
                                  quantizer_of(dialect, scheme, weight.dtype, tensor_most)};
  StoredWeight out{.name = {}, .packed = is_packed(dialect, scheme), .parts = {}};
  for (const Role role : roles_of(dialect, scheme)) {
    Array& part = out.parts[role];
    switch (role) {
      case Role::kNumbers:
        part = numbers_of(dialect, scheme, from);
        break;
      case Role::kScales:
        part = arrays::quantized_scales(from, scales, scale_dtype(dialect, scheme, weight.dtype));
        break;
      case Role::kZeros:
        // Packed as numbers are, along the rows of the weight.
        part = arrays::packed(arrays::quantized_zeros(from, scales, 1 << (scheme.bits - 1)),
                              scheme.bits, DType::kInt32, true);
        break;
      case Role::kSecond:
        part = arrays::constant_array(DType::kFloat32, modelopt ? Shape{} : Shape{1},
                                      second_scale_of(dialect, weight.dtype, tensor_most));
        break;
      default: {  // kShape
        const auto rank = static_cast<std::int64_t>(weight.shape.size());
        std::vector<std::byte> sizes(weight.shape.size() * sizeof(std::int64_t));
        std::memcpy(sizes.data(), weight.shape.data(), sizes.size());
        part = arrays::repeated_array(DType::kInt64, {rank}, sizes);
      }
    }
  }
  return out;
}

}  // namespace fsdp::formats::quantized
