// SPDX-License-Identifier: Apache-2.0
// Loops have a fixed length, so that compilers make vector instructions of them; CMakeLists.txt
// keeps compilers from fusing multiplications and additions.
#include "formats/arithmetic/weighted_sum.h"

#include <algorithm>
#include <array>
#include <limits>

#include "formats/base/cast.h"
#include "formats/base/vector_clones.h"

namespace fsdp::formats {
namespace {

// Elements converted at a time: whole blocks of `cast`, which stay in a core's first-level cache.
constexpr std::size_t kStep = 2048;

template <typename Real>
using Step = std::array<Real, kStep>;

FSDP_WIDE_VECTORS void multiply(const Step<float>& x, float weight, float* sum) {
  for (std::size_t i = 0; i < kStep; ++i) sum[i] = weight * x[i];
}
FSDP_WIDE_VECTORS void multiply(const Step<double>& x, double weight, double* sum) {
  for (std::size_t i = 0; i < kStep; ++i) sum[i] = weight * x[i];
}
FSDP_WIDE_VECTORS void multiply_add(const Step<float>& x, float weight, float* sum) {
  for (std::size_t i = 0; i < kStep; ++i) sum[i] = sum[i] + weight * x[i];
}
FSDP_WIDE_VECTORS void multiply_add(const Step<double>& x, double weight, double* sum) {
  for (std::size_t i = 0; i < kStep; ++i) sum[i] = sum[i] + weight * x[i];
}
FSDP_WIDE_VECTORS void divide(float* sum, float divisor) {
  for (std::size_t i = 0; i < kStep; ++i) sum[i] = sum[i] / divisor;
}
FSDP_WIDE_VECTORS void divide(double* sum, double divisor) {
  for (std::size_t i = 0; i < kStep; ++i) sum[i] = sum[i] / divisor;
}
// The sign and payload of a NaN depend on the processor.
FSDP_WIDE_VECTORS void settle_nan(float* sum) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (std::size_t i = 0; i < kStep; ++i) sum[i] = sum[i] != sum[i] ? kNan : sum[i];
}
FSDP_WIDE_VECTORS void settle_nan(double* sum) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (std::size_t i = 0; i < kStep; ++i) sum[i] = sum[i] != sum[i] ? kNan : sum[i];
}

void convert(DType dtype, std::span<const std::byte> elements, Step<float>& out) {
  const std::size_t count = elements.size() / item_bytes(dtype);
  cast(dtype, elements, DType::kFloat32, std::as_writable_bytes(std::span(out).first(count)));
}

void convert(DType dtype, std::span<const std::byte> elements, Step<double>& out) {
  const std::size_t count = elements.size() / item_bytes(dtype);
  // By way of float32, which holds every other type exactly.
  cast(dtype, elements, DType::kFloat64, std::as_writable_bytes(std::span(out).first(count)));
}

template <typename Real>
void add_all(DType dtype, std::span<const std::byte> elements, Real weight, bool first,
             std::vector<Real>& sums) {
  const std::size_t bytes = kStep * item_bytes(dtype);
  Step<Real> x{};
  for (std::size_t at = 0; at * bytes < elements.size(); ++at) {
    convert(dtype, elements.subspan(at * bytes, std::min(bytes, elements.size() - at * bytes)), x);
    Real* const sum = sums.data() + at * kStep;
    if (first) {
      multiply(x, weight, sum);
    } else {
      multiply_add(x, weight, sum);
    }
  }
}

template <typename Real>
void finish_all(std::optional<double> divisor, std::vector<Real>& sums) {
  for (std::size_t at = 0; at < sums.size(); at += kStep) {
    if (divisor) divide(sums.data() + at, static_cast<Real>(*divisor));
    settle_nan(sums.data() + at);
  }
}

}  // namespace

void WeightedSum::begin(std::size_t count) {
  count_ = count;
  first_ = true;
  const std::size_t steps = (count + kStep - 1) / kStep * kStep;
  if (accumulator_ == Accumulator::kFloat32) {
    floats_.resize(steps);
  } else {
    doubles_.resize(steps);
  }
}

void WeightedSum::add(DType dtype, std::span<const std::byte> elements, double weight) {
  if (accumulator_ == Accumulator::kFloat32) {
    add_all(dtype, elements, static_cast<float>(weight), first_, floats_);
  } else {
    add_all(dtype, elements, weight, first_, doubles_);
  }
  first_ = false;
}

void WeightedSum::finish(std::optional<double> divisor, DType to, std::span<std::byte> out) {
  if (accumulator_ == Accumulator::kFloat32) {
    finish_all(divisor, floats_);
    cast(DType::kFloat32, std::as_bytes(std::span(floats_).first(count_)), to, out);
  } else {
    finish_all(divisor, doubles_);
    cast(DType::kFloat64, std::as_bytes(std::span(doubles_).first(count_)), to, out);
  }
}

double rounded(double number, Accumulator accumulator) {
  return accumulator == Accumulator::kFloat32 ? double{static_cast<float>(number)} : number;
}

}  // namespace fsdp::formats
