// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/quantized/quantizers.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/base/vector_clones.h"

namespace fsdp::formats::quantized {
namespace {

using arrays::BlockScale;
using arrays::Quantizer;

constexpr float kFloat8Most = 448;  // of float8_e4m3fn
constexpr float kFloat4Most = 6;    // of E2M1
constexpr int kBias = 127;          // of E8M0
constexpr std::size_t kAtOnce = 256;
// Loops of this fixed length become vector instructions.
constexpr std::size_t kVector = 16;

// Rounds numbers to a dtype.
void round_to(DType dtype, std::span<float> numbers) {
  if (dtype == DType::kFloat32) return;
  std::byte narrow[kAtOnce * sizeof(std::uint16_t)];
  while (!numbers.empty()) {
    const auto part = numbers.first(std::min(kAtOnce, numbers.size()));
    const std::span<std::byte> out(narrow, part.size() * item_bytes(dtype));
    cast(DType::kFloat32, std::as_bytes(part), dtype, out);
    cast(dtype, out, DType::kFloat32, std::as_writable_bytes(part));
    numbers = numbers.subspan(part.size());
  }
}

float rounded(DType dtype, float number) {
  round_to(dtype, {&number, 1});
  return number;
}

float to_float8(float number) {
  number = std::clamp(number, -kFloat8Most, kFloat8Most);
  return rounded(DType::kFloat8E4M3FN, number);
}

// The properties of the dtypes of weights.
struct Floats {
  int mantissa;            // bits
  float epsilon;           // 1 and the next number differ by it
  float least;             // the smallest normal number
  std::uint32_t infinity;  // its bits
};

Floats floats_of(DType dtype) {
  if (dtype == DType::kBFloat16) return {7, 0x1p-7F, std::numeric_limits<float>::min(), 0x7F80};
  if (dtype == DType::kFloat16) return {10, 0x1p-10F, 0x1p-14F, 0x7C00};
  return {23, std::numeric_limits<float>::epsilon(), std::numeric_limits<float>::min(), 0x7F800000};
}

std::uint32_t bits_of(DType dtype, float number) {
  std::uint32_t bits = 0;
  cast(DType::kFloat32, std::as_bytes(std::span(&number, 1)), dtype,
       std::as_writable_bytes(std::span(&bits, 1)).first(item_bytes(dtype)));
  return bits;
}

float from_bits(DType dtype, std::uint32_t bits) {
  float number = 0;
  cast(dtype, std::as_bytes(std::span(&bits, 1)).first(item_bytes(dtype)), DType::kFloat32,
       std::as_writable_bytes(std::span(&number, 1)));
  return number;
}

// Returns the largest magnitude, which has no sign.
float magnitude(float least, float most) {
  return std::fabs(std::max(-least, most));
}

Error no_scale(const char* why) {
  return {ErrorCode::kUnsupported, cat("begins a block that ", why)};
}

// Encode what was divided.

FSDP_WIDE_VECTORS void divide(float* numbers, std::size_t count, float divisor) {
  for (std::size_t i = 0; i < count; ++i) numbers[i] = numbers[i] / divisor;
}

FSDP_WIDE_VECTORS void cut(float* numbers, std::size_t count, float least, float most) {
  for (std::size_t i = 0; i < count; ++i) {
    const float above = numbers[i] < least ? least : numbers[i];
    numbers[i] = above > most ? most : above;
  }
}

void encode_float8(std::span<float> numbers, std::span<std::uint8_t> codes) {
  cut(numbers.data(), numbers.size(), -kFloat8Most, kFloat8Most);
  cast(DType::kFloat32, std::as_bytes(numbers), DType::kFloat8E4M3FN,
       std::as_writable_bytes(codes));
}

// Rounds to nearest, ties to the even code.  Zero has no sign; what is negative and rounds to zero
// keeps it.
FSDP_WIDE_VECTORS void encode_float4(const float* numbers, std::size_t count, std::uint8_t* codes) {
  for (std::size_t i = 0; i < count; ++i) {
    const float magnitude = numbers[i] < 0 ? -numbers[i] : numbers[i];
    const int code = (magnitude > 0.25F ? 1 : 0) + (magnitude >= 0.75F ? 1 : 0) +
                     (magnitude > 1.25F ? 1 : 0) + (magnitude >= 1.75F ? 1 : 0) +
                     (magnitude > 2.5F ? 1 : 0) + (magnitude >= 3.5F ? 1 : 0) +
                     (magnitude > 5.0F ? 1 : 0);
    codes[i] = static_cast<std::uint8_t>(code + (numbers[i] < 0 ? 8 : 0));
  }
}

// Rounds ties towards zero; zeros, of either sign, get the sign: as modelopt's MXFP4 does.
FSDP_WIDE_VECTORS void encode_float4_down(const float* numbers, std::size_t count,
                                          std::uint8_t* codes) {
  for (std::size_t i = 0; i < count; ++i) {
    const float magnitude = numbers[i] < 0 ? -numbers[i] : numbers[i];
    const int code = (magnitude > 0.25F ? 1 : 0) + (magnitude > 0.75F ? 1 : 0) +
                     (magnitude > 1.25F ? 1 : 0) + (magnitude > 1.75F ? 1 : 0) +
                     (magnitude > 2.5F ? 1 : 0) + (magnitude > 3.5F ? 1 : 0) +
                     (magnitude > 5.0F ? 1 : 0);
    codes[i] = static_cast<std::uint8_t>(code + (numbers[i] > 0 ? 0 : 8));
  }
}

// Rounds to integers; `offset` is added to each.
FSDP_WIDE_VECTORS void encode_integers(const float* numbers, std::size_t count, int offset,
                                       std::uint8_t* codes) {
  for (std::size_t i = 0; i < count; ++i)
    codes[i] = static_cast<std::uint8_t>(static_cast<int>(std::nearbyint(numbers[i])) + offset);
}

// compressed-tensors: every step is rounded to the dtype of the weight.

class PlainQuantizer : public Quantizer {
 public:
  PlainQuantizer(const Scheme& scheme, DType weight)
      : scheme_(scheme), weight_(weight), floats_(formats::quantized::floats_of(weight)) {
    const bool integers = scheme.numbers == NumberKind::kInteger;
    const auto count = static_cast<float>(1U << scheme.bits);
    most_ = integers ? count / 2 - 1 : kFloat8Most;
    least_ = integers ? -count / 2 : -kFloat8Most;
    half_ = integers ? (count - 1) / 2 : kFloat8Most;
  }

  BlockScale scale(float least, float most) const override {
    if (!scheme_.symmetric) return with_zero(std::min(least, 0.0F), std::max(most, 0.0F));
    const float scale = finite(rounded(weight_, magnitude(least, most) / half_));
    return {scale, scale};
  }

  void encode(std::span<float> elements, const BlockScale& scale,
              std::span<std::uint8_t> codes) const override {
    divide(elements.data(), elements.size(), scale.divisor);
    round_to(weight_, elements);
    if (!scheme_.symmetric) {
      for (float& number : elements) number += scale.zero;
      round_to(weight_, elements);
    }
    if (scheme_.numbers == NumberKind::kFloat) return encode_float8(elements, codes);
    cut(elements.data(), elements.size(), least_, most_);
    // Numbers of a whole row that are not packed are signed.
    const bool packed = scheme_.sharing == Sharing::kGroups;
    encode_integers(elements.data(), elements.size(), packed ? 1 << (scheme_.bits - 1) : 0,
                    codes.data());
  }

 private:
  // Returns the scale; the dtype's epsilon for 0, as blocks of zeros and of tiny numbers have.
  float finite(float scale) const {
    if (std::isinf(scale)) throw no_scale("has no finite scale");
    return scale == 0 ? floats_.epsilon : scale;
  }

  BlockScale with_zero(float least, float most) const {
    const float raw = rounded(weight_, rounded(weight_, most - least) / (2 * half_));
    const float point = rounded(weight_, least_ - rounded(weight_, least / raw));
    const float zero = std::isnan(point) ? 0 : std::nearbyint(std::clamp(point, least_, most_));
    const float scale = finite(raw);
    return {scale, scale, zero};
  }

  Scheme scheme_;
  DType weight_;
  Floats floats_;
  float least_ = 0;
  float most_ = 0;
  float half_ = 0;  // of the range of numbers
};

// MXFP4 and MXFP8: the scale is the power of two below the largest magnitude, or the next one if
// that is at least 1.75 times it, over the largest power of two among the numbers.
class PowerQuantizer : public Quantizer {
 public:
  PowerQuantizer(const Scheme& scheme, DType weight)
      : bits_(scheme.bits), weight_(weight), floats_(formats::quantized::floats_of(weight)) {}

  BlockScale scale(float least, float most) const override {
    const std::uint32_t sign_and_exponent = ~((1U << floats_.mantissa) - 1);
    const std::uint32_t bits = bits_of(weight_, magnitude(least, most));
    const std::uint32_t power_bits = (bits + (1U << (floats_.mantissa - 2))) & sign_and_exponent;
    if (power_bits >= floats_.infinity) throw no_scale("is too large for a power of two as scale");
    const float power = from_bits(weight_, power_bits);
    const int raised = power == 0 ? 0 : kBias + std::ilogb(power) - (bits_ == 4 ? 2 : 8);
    const int exponent = std::clamp(raised, 0, 255);
    const float held = rounded(weight_, std::ldexp(1.0F, exponent - kBias));
    const float divisor = held == 0 ? 1 : held;
    return {static_cast<float>(kBias + std::ilogb(divisor)), divisor};
  }

  void encode(std::span<float> elements, const BlockScale& scale,
              std::span<std::uint8_t> codes) const override {
    divide(elements.data(), elements.size(), scale.divisor);
    round_to(weight_, elements);
    if (bits_ == 8) return encode_float8(elements, codes);
    encode_float4(elements.data(), elements.size(), codes.data());
  }

 private:
  unsigned bits_;
  DType weight_;
  Floats floats_;
};

// NVFP4: scales of float8_e4m3fn, which have a scale for the tensor.
class SecondScaleQuantizer : public Quantizer {
 public:
  SecondScaleQuantizer(DType weight, float second) : weight_(weight), second_(second) {}

  BlockScale scale(float least, float most) const override {
    const float own = rounded(weight_, magnitude(least, most) / kFloat4Most);
    float scale = to_float8(second_ * own);
    if (scale == 0) scale = 0.125F;
    return {scale, scale / second_};
  }

  void encode(std::span<float> elements, const BlockScale& scale,
              std::span<std::uint8_t> codes) const override {
    divide(elements.data(), elements.size(), scale.divisor);
    encode_float4(elements.data(), elements.size(), codes.data());
  }

 private:
  DType weight_;
  float second_;
};

// nvidia-modelopt: scales of float32.

class ModelOptQuantizer : public Quantizer {
 public:
  ModelOptQuantizer(const Scheme& scheme, DType weight) : scheme_(scheme), weight_(weight) {
    if (scheme.numbers == NumberKind::kInteger) most_ = scheme.bits == 4 ? 7 : 127;
    const bool by_weight = scheme.bits == 8 && scheme.sharing == Sharing::kRows;
    least_ =
        by_weight ? formats::quantized::floats_of(weight).least : std::numeric_limits<float>::min();
  }

  BlockScale scale(float least, float most) const override {
    const float largest = magnitude(least, most);
    const float scale = std::max(largest == 0 ? most_ : largest, least_) / most_;
    return {scale, scale};
  }

  void encode(std::span<float> elements, const BlockScale& scale,
              std::span<std::uint8_t> codes) const override {
    divide(elements.data(), elements.size(), scale.divisor);
    // One scale for the tensor does not widen the dtype of the quotient.
    if (scheme_.sharing == Sharing::kTensor) round_to(weight_, elements);
    if (scheme_.numbers == NumberKind::kFloat) return encode_float8(elements, codes);
    cut(elements.data(), elements.size(), -most_ - 1, most_);
    encode_integers(elements.data(), elements.size(), 0, codes.data());
  }

 private:
  Scheme scheme_;
  DType weight_;
  float most_ = kFloat8Most;
  float least_ = 0;
};

class ModelOptSecondScale : public Quantizer {
 public:
  explicit ModelOptSecondScale(float second) : second_(second) {}

  BlockScale scale(float least, float most) const override {
    float scale = magnitude(least, most) / (kFloat4Most * second_);
    if (scale == 0) scale = 1;
    scale = to_float8(std::max(scale, 0x1p-9F));
    return {scale, scale * second_};
  }

  void encode(std::span<float> elements, const BlockScale& scale,
              std::span<std::uint8_t> codes) const override {
    divide(elements.data(), elements.size(), scale.divisor);
    encode_float4(elements.data(), elements.size(), codes.data());
  }

 private:
  float second_;
};

class ModelOptPower : public Quantizer {
 public:
  explicit ModelOptPower(unsigned bits) : bits_(bits) {}

  BlockScale scale(float least, float most) const override {
    const float ratio = magnitude(least, most) / (bits_ == 4 ? kFloat4Most : kFloat8Most);
    const float power = ratio > 0 ? std::ceil(std::log2(ratio)) : -kBias;
    const float exponent = std::clamp(power, static_cast<float>(-kBias), static_cast<float>(kBias));
    return {exponent + kBias, std::ldexp(1.0F, static_cast<int>(exponent))};
  }

  void encode(std::span<float> elements, const BlockScale& scale,
              std::span<std::uint8_t> codes) const override {
    divide(elements.data(), elements.size(), scale.divisor);
    if (bits_ == 8) return encode_float8(elements, codes);
    encode_float4_down(elements.data(), elements.size(), codes.data());
  }

 private:
  unsigned bits_;
};

// transformers.

FSDP_WIDE_VECTORS void multiply_and_cut(float* numbers, std::size_t count, float factor) {
  const auto each = [=](std::size_t i) {
    const float product = numbers[i] * factor;
    const float above = product < -kFloat8Most ? -kFloat8Most : product;
    numbers[i] = above > kFloat8Most ? kFloat8Most : above;
  };
  std::size_t i = 0;
  for (; i + kVector <= count; i += kVector) {
    for (std::size_t l = 0; l < kVector; ++l) each(i + l);
  }
  for (; i < count; ++i) each(i);
}

// See Note [how transformers quantizes a block].
class TransformersFloat8 : public Quantizer {
 public:
  BlockScale scale(float least, float most) const override {
    const float magnitude = std::max(-least, most);
    const float factor = magnitude == 0 ? 1 : (1 / magnitude) * kFloat8Most;
    const float finite = std::isfinite(factor) ? factor : 1;
    return {1 / finite, finite};
  }
  void encode(std::span<float> elements, const BlockScale& scale,
              std::span<std::uint8_t> codes) const override {
    multiply_and_cut(elements.data(), elements.size(), scale.divisor);
    cast(DType::kFloat32, std::as_bytes(elements), DType::kFloat8E4M3FN,
         std::as_writable_bytes(codes));
  }
};

}  // namespace

float second_scale_of(Dialect dialect, DType weight, float tensor_most) {
  if (dialect == Dialect::kModelOpt) return tensor_most / (kFloat4Most * kFloat8Most);
  const float most = std::max(tensor_most, floats_of(weight).least);
  const float scale = rounded(weight, rounded(weight, 1 / most) * (kFloat4Most * kFloat8Most));
  return std::isfinite(scale) ? scale : 1;
}

std::shared_ptr<const Quantizer> quantizer_of(Dialect dialect, const Scheme& scheme, DType weight,
                                              float tensor_most) {
  if (dialect == Dialect::kTransformersFp8) return std::make_shared<TransformersFloat8>();
  if (dialect == Dialect::kModelOpt) {
    if (scheme.second_scale) {
      return std::make_shared<ModelOptSecondScale>(second_scale_of(dialect, weight, tensor_most));
    }
    if (scheme.powers) return std::make_shared<ModelOptPower>(scheme.bits);
    return std::make_shared<ModelOptQuantizer>(scheme, weight);
  }
  if (scheme.second_scale) {
    return std::make_shared<SecondScaleQuantizer>(weight,
                                                  second_scale_of(dialect, weight, tensor_most));
  }
  if (scheme.powers) return std::make_shared<PowerQuantizer>(scheme, weight);
  return std::make_shared<PlainQuantizer>(scheme, weight);
}

}  // namespace fsdp::formats::quantized
