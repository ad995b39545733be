// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/quantized/stored_weight.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/arrays/computed.h"
#include "formats/changes/arrays/decode.h"
#include "formats/changes/arrays/dequantize.h"
#include "formats/changes/arrays/elementwise.h"

namespace fsdp::formats::quantized {
namespace {

using arrays::Array;
using arrays::Code;

constexpr std::int64_t kGptOssBytes = 16;  // of a group
constexpr std::int64_t kGptOssGroup = 32;
// E2M1 as modelopt reads NVFP4: zeros have no sign.
constexpr std::array<float, 16> kUnsignedZero = {0, 0.5F,  1,  1.5F,  2,  3,  4,  6,
                                                 0, -0.5F, -1, -1.5F, -2, -3, -4, -6};

// Returns the integers of a short tensor; nothing if it is not one.
std::optional<Shape> small_integers(const Array& array) {
  constexpr std::uint64_t kMost = 8;
  const bool wide = array.dtype == DType::kInt64;
  if ((!wide && array.dtype != DType::kInt32) || array.shape.size() != 1 || numel_of(array) > kMost)
    return std::nullopt;
  std::vector<std::byte> bytes(numel_of(array) * item_bytes(array.dtype));
  arrays::ArrayReader(array).read(0, bytes);
  Shape out;
  for (std::size_t i = 0; i < numel_of(array); ++i) {
    std::int64_t number = 0;
    std::int32_t narrow = 0;
    std::memcpy(wide ? static_cast<void*>(&number) : &narrow,
                bytes.data() + i * item_bytes(array.dtype), item_bytes(array.dtype));
    out.push_back(wide ? number : narrow);
  }
  return out;
}

// Returns whether scales have a shape, dimensions of one element aside.
bool goes_with(const Shape& shape, const Shape& expected) {
  const auto without_ones = [](Shape sizes) {
    std::erase(sizes, 1);
    return sizes;
  };
  return without_ones(shape) == without_ones(expected);
}

// Tries a scheme.
class Trial {
 public:
  Trial(Dialect dialect, const Scheme& scheme, const StoredWeight& weight, DType to)
      : dialect_(dialect), scheme_(scheme), weight_(weight), to_(to) {
    from_.to = to;
  }

  Tried run() {
    if (weight_.find(Role::kOrder) != nullptr) return "groups in another order than the inputs";
    for (const auto step :
         {&Trial::take_numbers, &Trial::cut, &Trial::take_scales, &Trial::take_zeros}) {
      if (std::string why = (this->*step)(); !why.empty()) return why;
    }
    arrays::check_bytes(shape_, to_);
    if (const Array* const inputs = weight_.find(Role::kInputs)) {
      if (!is_floating(inputs->dtype) || inputs->shape != Shape{shape_.back()})
        return unlike("factors of inputs", *inputs, cat("floating [", shape_.back(), "]"));
      from_.columns = *inputs;
    }
    return arrays::dequantized(from_, shape_);
  }

 private:
  // Each returns why it is not as the scheme says; empty: it is.

  // Sets the numbers, as floats, and the shape of the weight.
  std::string take_numbers() {
    const Array& numbers = weight_.at(Role::kNumbers);
    shape_ = numbers.shape;
    const bool floating = scheme_.numbers == NumberKind::kFloat;
    if (floating && scheme_.bits == 8) {
      if (weight_.packed || !is_float8(numbers.dtype))
        return unlike("numbers", numbers, "8-bit floats");
      from_.numbers = numbers;
      return {};
    }
    if (shape_.empty()) return unlike("numbers", numbers, "at least one dimension");
    if (floating) return take_float4(numbers);
    if (dialect_ == Dialect::kModelOpt && scheme_.bits == 4) {
      // Two rows in a byte.
      if (numbers.dtype != DType::kUInt8 || shape_.size() != 2)
        return unlike("numbers", numbers, "two rows of 4 bits in a uint8 matrix");
      if (__builtin_mul_overflow(shape_[0], 2, shape_.data())) return "sizes exceed 64 bits";
      from_.numbers = arrays::decoded(
          numbers, {.code = Code::kSigned, .bits = 4, .first_dimension = true}, shape_);
      return {};
    }
    if (weight_.packed) return take_words(numbers);
    if (scheme_.bits != 8 || numbers.dtype != DType::kInt8)
      return unlike("numbers", numbers, cat("int", scheme_.bits));
    from_.numbers = arrays::decoded(numbers, {.code = Code::kSigned, .bits = 8}, shape_);
    return {};
  }

  std::string take_float4(const Array& numbers) {
    if (numbers.dtype != DType::kUInt8 && numbers.dtype != DType::kFloat4E2M1FNx2)
      return unlike("numbers", numbers, "two numbers of 4 bits in a uint8");
    std::int64_t each = 2;
    if (dialect_ == Dialect::kGptOss) {
      if (shape_.size() < 2 || shape_.back() != kGptOssBytes)
        return unlike("numbers", numbers, "[..., groups, 16]");
      shape_.pop_back();
      each = kGptOssGroup;
    }
    if (__builtin_mul_overflow(shape_.back(), each, &shape_.back())) return "sizes exceed 64 bits";
    arrays::Packing packing{.code = Code::kFloat4, .bits = 4};
    if (dialect_ == Dialect::kModelOpt && scheme_.second_scale) {
      packing.code = Code::kTable;
      packing.table = {kUnsignedZero.begin(), kUnsignedZero.end()};
    }
    from_.numbers = arrays::decoded(numbers, packing, shape_);
    return {};
  }

  std::string take_words(const Array& numbers) {
    if (numbers.dtype != DType::kInt32) return unlike("numbers", numbers, "words of int32");
    const Array* const told = weight_.find(Role::kShape);
    if (told == nullptr) return "no weight_shape";
    const auto given = small_integers(*told);
    if (!given || given->size() != shape_.size())
      return unlike("weight_shape", *told, cat(shape_.size(), " integers"));
    for (std::size_t d = 0; d < shape_.size(); ++d) {
      const std::int64_t size = (*given)[d];
      const std::uint64_t held =
          d + 1 == shape_.size() && size > 0
              ? arrays::packed_size(static_cast<std::uint64_t>(size), scheme_.bits, DType::kInt32)
              : static_cast<std::uint64_t>(size);
      if (size < 0 || held != static_cast<std::uint64_t>(shape_[d]))
        return cat("weight_shape ", shape_text(*given), ", but packed numbers ",
                   shape_text(shape_));
    }
    shape_ = *given;
    from_.numbers = arrays::decoded(numbers, {.code = Code::kOffset, .bits = scheme_.bits}, shape_);
    return {};
  }

  // Cuts the weight into the parts that share a scale.
  std::string cut() {
    if (shape_.size() < least_rank(scheme_)) return cat("a weight of shape ", shape_text(shape_));
    ScaledShape parts = scaled_shape(scheme_, shape_);
    from_.grid = parts.grid;
    expected_ = std::move(parts.scales);
    return {};
  }

  std::string take_scales() {
    const Array& scales = weight_.at(Role::kScales);
    if (!goes_with(scales.shape, expected_)) return unlike("scales", scales, shape_text(expected_));
    // transformers takes bytes for exponents.
    const bool bytes = scales.dtype == DType::kUInt8 && dialect_ == Dialect::kTransformersFp8;
    if (scheme_.powers || bytes) {
      if (scales.dtype != DType::kUInt8 && scales.dtype != DType::kFloat8E8M0FNU)
        return unlike("scales", scales, "exponents in uint8");
      from_.scales = arrays::powers_of_two(scales);
    } else if (is_floating(scales.dtype)) {
      from_.scales = scales;
    } else {
      return unlike("scales", scales, "floating numbers");
    }
    const Array* const second = weight_.find(Role::kSecond);
    if (scheme_.second_scale != (second != nullptr))
      return scheme_.second_scale ? "no scale of the scales" : "a scale of the scales";
    if (second != nullptr) {
      if (!is_floating(second->dtype) || numel_of(*second) != 1)
        return unlike("the scale of scales", *second, "one floating number");
      from_.global = *second;
      from_.divides = dialect_ == Dialect::kCompressedTensors;
    }
    note_arithmetic(scales.dtype);
    return {};
  }

  void note_arithmetic(DType scales) {
    // compressed-tensors computes in the dtype of the scales, and in bfloat16 if these have 8 bits.
    if (dialect_ == Dialect::kCompressedTensors)
      from_.product = item_bytes(scales) > 1 ? scales : DType::kBFloat16;
    // torchao multiplies in the dtype of the result where scales are powers of two.
    if (dialect_ == Dialect::kTorchao && scheme_.powers) return multiply_in_result();
    // modelopt rounds scales of float32 to the dtype of the result first, and each product.
    const bool plain = !scheme_.powers && !scheme_.second_scale && scheme_.bits == 8;
    if (dialect_ == Dialect::kModelOpt && plain) multiply_in_result();
  }
  void multiply_in_result() {
    from_.product = to_;
    if (from_.scales.dtype != to_)
      from_.scales = arrays::with_step(from_.scales, {arrays::Arithmetic::kCast, to_});
  }

  std::string take_zeros() {
    const Array* const zeros = weight_.find(Role::kZeros);
    if (scheme_.symmetric) return zeros == nullptr ? "" : "zero points, but it is symmetric";
    if (zeros == nullptr) return "no zero points, but it is not symmetric";
    if (scheme_.numbers == NumberKind::kFloat) {
      if (!is_floating(zeros->dtype) || !goes_with(zeros->shape, expected_))
        return unlike("zero points", *zeros, cat("floating ", shape_text(expected_)));
      from_.zeros = *zeros;
      return {};
    }
    if (!weight_.packed || scheme_.sharing == Sharing::kTensor) {
      if (zeros->dtype != DType::kInt8 || !goes_with(zeros->shape, expected_))
        return unlike("zero points", *zeros, cat("int8 ", shape_text(expected_)));
      from_.zeros = arrays::decoded(*zeros, {.code = Code::kSigned, .bits = 8}, zeros->shape);
      return {};
    }
    // Packed along the rows of the weight.
    if (shape_.size() != 2 || 32 % scheme_.bits != 0)
      return cat("zero points of ", scheme_.bits, " bits in words");
    const Shape words = {static_cast<std::int64_t>(arrays::packed_size(
                             static_cast<std::uint64_t>(shape_[0]), scheme_.bits, DType::kInt32)),
                         expected_.back()};
    if (zeros->dtype != DType::kInt32 || zeros->shape != words)
      return unlike("zero points", *zeros, cat("int32 ", shape_text(words)));
    from_.zeros = arrays::decoded(
        *zeros, {.code = Code::kOffset, .bits = scheme_.bits, .first_dimension = true}, expected_);
    return {};
  }

  Dialect dialect_;
  const Scheme& scheme_;
  const StoredWeight& weight_;
  DType to_;
  Shape shape_;
  Shape expected_;  // of the scales
  arrays::Dequantization from_;
};

}  // namespace

std::vector<std::pair<Role, std::string_view>> endings_of(Dialect dialect) {
  switch (dialect) {
    case Dialect::kCompressedTensors:
      return {{Role::kNumbers, ".weight_packed"},      {Role::kNumbers, ".weight"},
              {Role::kScales, ".weight_scale"},        {Role::kZeros, ".weight_zero_point"},
              {Role::kSecond, ".weight_global_scale"}, {Role::kShape, ".weight_shape"},
              {Role::kOrder, ".weight_g_idx"}};
    case Dialect::kModelOpt:
      return {{Role::kNumbers, ".weight"},
              {Role::kScales, ".weight_scale"},
              {Role::kSecond, ".weight_scale_2"},
              {Role::kInputs, ".pre_quant_scale"}};
    case Dialect::kTransformersFp8:
      return {{Role::kNumbers, ".weight"}, {Role::kScales, ".weight_scale_inv"}};
    case Dialect::kGptOss:
      return {{Role::kNumbers, "_blocks"}, {Role::kScales, "_scales"}};
    case Dialect::kGptq:
      return {{Role::kNumbers, ".qweight"},
              {Role::kScales, ".scales"},
              {Role::kZeros, ".qzeros"},
              {Role::kOrder, ".g_idx"}};
    case Dialect::kAwq:
      return {{Role::kNumbers, ".qweight"}, {Role::kScales, ".scales"}, {Role::kZeros, ".qzeros"}};
    case Dialect::kBitsandbytes4:
      return {{Role::kNumbers, ".weight"},
              {Role::kScales, ".weight.absmax"},
              {Role::kTable, ".weight.quant_map"},
              {Role::kState, ".weight.quant_state.bitsandbytes__nf4"},
              {Role::kState, ".weight.quant_state.bitsandbytes__fp4"},
              {Role::kNestedScales, ".weight.nested_absmax"},
              {Role::kNestedTable, ".weight.nested_quant_map"}};
    case Dialect::kTorchao:
      return {{Role::kNumbers, "._weight_qdata"}, {Role::kScales, "._weight_scale"}};
    case Dialect::kBitsandbytes8:
      break;
  }
  return {{Role::kNumbers, ".weight"}, {Role::kScales, ".SCB"}, {Role::kOrder, ".weight_format"}};
}

std::string_view ending_of(Dialect dialect, Role role, bool packed) {
  for (const auto& [own, ending] : endings_of(dialect)) {
    if (own == role && (role != Role::kNumbers || (ending != kPlainName) == packed)) return ending;
  }
  return {};
}

bool is_float8(DType dtype) {
  return is_floating(dtype) && item_bytes(dtype) == 1 && dtype != DType::kFloat8E8M0FNU;
}

std::string unlike(const char* what, const Array& array, std::string_view expected) {
  return cat(what, " ", torch_name(array.dtype), " ", shape_text(array.shape), ", expected ",
             expected);
}

Tried dequantized_weight(Dialect dialect, const Scheme& scheme, const StoredWeight& weight,
                         DType to) {
  switch (dialect) {
    case Dialect::kGptq:
    case Dialect::kAwq:
      return dequantized_by_inputs(dialect, scheme, weight, to);
    case Dialect::kBitsandbytes4:
      return dequantized_by_table(weight, to);
    case Dialect::kBitsandbytes8:
      return dequantized_rows(weight, to);
    default:
      return Trial(dialect, scheme, weight, to).run();
  }
}

}  // namespace fsdp::formats::quantized
