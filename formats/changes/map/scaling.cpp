// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/map/scaling.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/arrays/block_grid.h"
#include "formats/changes/arrays/decode.h"
#include "formats/changes/arrays/dequantize.h"
#include "formats/changes/arrays/quantize.h"

namespace fsdp::formats::map {
namespace {

using arrays::Array;
using arrays::BlockGrid;
using arrays::QuantizedArrays;

using Sizes = std::vector<std::int64_t>;

constexpr std::int64_t kMxfp4Numbers = 32;  // with one scale
constexpr std::int64_t kMxfp4Bytes = 16;

std::uint64_t product(std::span<const std::int64_t> sizes) {
  return volume({sizes, sizes});
}

Error bad_scaling(ErrorCode code, const Operation& operation, const std::string& what) {
  return Error(code, cat(operation_name(operation.kind), " ", what));
}

// The blocks of a tensor of that shape, and the shape of their scales.
struct ScaledShape {
  BlockGrid grid;
  Sizes scales;
};

ScaledShape scaled_shape(const Operation& operation, const Sizes& shape,
                         const ParameterValue& parameter) {
  ScaledShape out;
  if (operation.scales == ScaleLayout::kTensor) {
    out.grid.columns = product(shape);
    out.grid.block_columns = std::max<std::uint64_t>(1, out.grid.columns);
    return out;
  }
  const bool blocks = operation.scales == ScaleLayout::kBlocks;
  const std::size_t least = blocks ? 2 : 1;
  if (shape.size() < least) {
    throw bad_scaling(
        ErrorCode::kShape, operation,
        cat("takes tensors of at least ", least, " dimensions, not ", shape_text(shape)));
  }
  const std::size_t leading = shape.size() - least;
  out.scales.assign(shape.begin(), shape.end() - static_cast<std::ptrdiff_t>(least));
  out.grid.matrices = product(out.scales);
  out.grid.columns = static_cast<std::uint64_t>(shape.back());
  if (!blocks) {
    out.grid.block_columns = std::max<std::uint64_t>(1, out.grid.columns);
    out.scales.push_back(1);
    return out;
  }
  const std::int64_t rows = operation.block[0].value(parameter);
  const std::int64_t columns = operation.block[1].value(parameter);
  if (rows < 1 || columns < 1) {
    throw bad_scaling(ErrorCode::kShape, operation,
                      cat("takes blocks of at least one element, not ", rows, " x ", columns));
  }
  out.grid.rows = static_cast<std::uint64_t>(shape[leading]);
  out.grid.block_rows = static_cast<std::uint64_t>(rows);
  out.grid.block_columns = static_cast<std::uint64_t>(columns);
  out.scales.push_back(static_cast<std::int64_t>(out.grid.scale_rows()));
  out.scales.push_back(static_cast<std::int64_t>(out.grid.scale_columns()));
  return out;
}

// Returns whether scales of shape `scales` fit `expected`.  One scale for a tensor may have any
// number of dimensions; scales of rows may lack the last dimension.
bool goes_with(const Operation& operation, const Sizes& scales, const Sizes& expected) {
  if (scales == expected) return true;
  if (operation.scales == ScaleLayout::kTensor) return product(scales) == 1;
  return operation.scales == ScaleLayout::kRows &&
         scales == Sizes(expected.begin(), expected.end() - 1);
}

void check_dtype(const Operation& operation, const Array& array, bool fits, const char* wanted) {
  if (fits) return;
  throw bad_scaling(ErrorCode::kDtype, operation,
                    cat("takes ", wanted, ", not ", torch_name(array.dtype)));
}

Array dequantized_one(const Operation& operation, const Array& numbers, const Array& scales,
                      const ParameterValue& parameter) {
  const bool mxfp4 = operation.scales == ScaleLayout::kMxfp4;
  ScaledShape scaled;
  Sizes shape = numbers.shape;
  if (mxfp4) {
    check_dtype(operation, numbers, numbers.dtype == DType::kUInt8, "mxfp4 in uint8");
    check_dtype(operation, scales, scales.dtype == DType::kUInt8, "scales of mxfp4 in uint8");
    if (shape.size() < 2 || shape.back() != kMxfp4Bytes) {
      throw bad_scaling(
          ErrorCode::kShape, operation,
          cat("takes mxfp4 of shape [..., blocks, ", kMxfp4Bytes, "], not ", shape_text(shape)));
    }
    shape.pop_back();
    scaled.scales = shape;
    if (__builtin_mul_overflow(shape.back(), kMxfp4Numbers, &shape.back()))
      throw Error(ErrorCode::kOverflow, "sizes exceed 64 bits");
    scaled.grid.columns = product(shape);
    scaled.grid.block_columns = kMxfp4Numbers;
  } else {
    check_dtype(operation, numbers, numbers.dtype == DType::kFloat8E4M3FN, "float8_e4m3fn");
    check_dtype(operation, scales, is_floating(scales.dtype), "floating scales");
    scaled = scaled_shape(operation, shape, parameter);
  }
  if (!goes_with(operation, scales.shape, scaled.scales)) {
    throw bad_scaling(ErrorCode::kShape, operation,
                      cat("takes scales ", shape_text(scaled.scales), " for ",
                          shape_text(numbers.shape), ", not ", shape_text(scales.shape)));
  }
  arrays::check_bytes(shape, operation.dtype);
  arrays::Dequantization from{numbers, scales, scaled.grid};
  from.to = operation.dtype;
  if (mxfp4) {
    from.numbers = decoded(numbers, {.code = arrays::Code::kFloat4, .bits = 4}, shape);
    from.scales = powers_of_two(scales);
  }
  return arrays::dequantized(from, shape);
}

}  // namespace

std::vector<Array> dequantized(const Operation& operation, std::span<const Array> arrays,
                               const ParameterValue& parameter) {
  if (arrays.empty() || arrays.size() % 2 != 0) {
    throw bad_scaling(
        ErrorCode::kShape, operation,
        cat("takes equally many tensors and scales, not ", arrays.size(), " arrays in all"));
  }
  const std::size_t count = arrays.size() / 2;
  std::vector<Array> out;
  for (std::size_t i = 0; i < count; ++i)
    out.push_back(dequantized_one(operation, arrays[i], arrays[count + i], parameter));
  return out;
}

std::vector<Array> quantized(const Operation& operation, std::span<const Array> arrays,
                             const ParameterValue& parameter) {
  std::vector<Array> out;
  std::vector<Array> scales;
  for (const Array& array : arrays) {
    check_dtype(operation, array, is_floating(array.dtype), "floating tensors");
    const ScaledShape scaled = scaled_shape(operation, array.shape, parameter);
    QuantizedArrays made = quantized_arrays(array, scaled.grid, scaled.scales);
    out.push_back(std::move(made.numbers));
    scales.push_back(std::move(made.scales));
  }
  for (Array& one : scales) out.push_back(std::move(one));
  return out;
}

}  // namespace fsdp::formats::map
