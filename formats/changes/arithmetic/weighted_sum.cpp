// SPDX-License-Identifier: Apache-2.0
// Loops have a fixed length, so that compilers make vector instructions of them; CMakeLists.txt
// keeps compilers from fusing multiplications and additions.
#include "formats/changes/arithmetic/weighted_sum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/vector_clones.h"
#include "formats/changes/arithmetic/real.h"

namespace fsdp::formats {
namespace {

// Elements added up at a time: whole blocks of `cast`, which stay in a core's first-level cache.
constexpr std::size_t kStep = 2048;

// Loads an element that need not be aligned.
template <typename Type>
FSDP_INTO_CALLER Type load(const std::byte* elements, std::size_t i) {
  Type element;
  std::memcpy(&element, elements + i * sizeof element, sizeof element);
  return element;
}

FSDP_INTO_CALLER float load_bfloat16(const std::byte* elements, std::size_t i) {
  return std::bit_cast<float>(std::uint32_t{load<std::uint16_t>(elements, i)} << 16U);
}

// `at`: returns the number at a position of the input, exactly.
template <typename Real, typename At>
FSDP_INTO_CALLER void add_step(const At& at, Real weight, bool first, Real* sum) {
  if (first) {
    for (std::size_t i = 0; i < kStep; ++i) sum[i] = weight * at(i);
  } else {
    for (std::size_t i = 0; i < kStep; ++i) sum[i] = sum[i] + weight * at(i);
  }
}

FSDP_WIDE_VECTORS void add_exact(const std::byte* x, float weight, bool first,
                                 float* __restrict sum) {
  add_step([=](std::size_t i) { return load<float>(x, i); }, weight, first, sum);
}
FSDP_WIDE_VECTORS void add_exact(const std::byte* x, double weight, bool first,
                                 double* __restrict sum) {
  add_step([=](std::size_t i) { return load<double>(x, i); }, weight, first, sum);
}
FSDP_WIDE_VECTORS void add_bfloat16(const std::byte* x, float weight, bool first,
                                    float* __restrict sum) {
  add_step([=](std::size_t i) { return load_bfloat16(x, i); }, weight, first, sum);
}
FSDP_WIDE_VECTORS void add_bfloat16(const std::byte* x, double weight, bool first,
                                    double* __restrict sum) {
  add_step([=](std::size_t i) { return double{load_bfloat16(x, i)}; }, weight, first, sum);
}

template <typename Real>
FSDP_INTO_CALLER void end_step(std::optional<double> divisor, Real* sum) {
  if (divisor) {
    const auto rounded_divisor = static_cast<Real>(*divisor);
    for (std::size_t i = 0; i < kStep; ++i) sum[i] = settled(sum[i] / rounded_divisor);
  } else {
    for (std::size_t i = 0; i < kStep; ++i) sum[i] = settled(sum[i]);
  }
}

FSDP_WIDE_VECTORS void end_sums(std::optional<double> divisor, float* sum) {
  end_step(divisor, sum);
}
FSDP_WIDE_VECTORS void end_sums(std::optional<double> divisor, double* sum) {
  end_step(divisor, sum);
}

template <typename Real>
void add_all(DType dtype, std::span<const std::byte> elements, Real weight, bool first,
             std::vector<Real>& sums) {
  const std::size_t item = item_bytes(dtype);
  std::array<Real, kStep> converted{};
  for (std::size_t at = 0; at * item < elements.size(); at += kStep) {
    const auto part =
        elements.subspan(at * item, std::min(kStep * item, elements.size() - at * item));
    const bool whole = part.size() == kStep * item;
    Real* const sum = sums.data() + at;
    if (whole && dtype == kTypeOf<Real>) {
      add_exact(part.data(), weight, first, sum);
    } else if (whole && dtype == DType::kBFloat16) {
      add_bfloat16(part.data(), weight, first, sum);
    } else {
      const auto out = std::as_writable_bytes(std::span(converted));
      cast(dtype, part, kTypeOf<Real>, out.first(part.size() / item * sizeof(Real)));
      add_exact(out.data(), weight, first, sum);
    }
  }
}

template <typename Real>
void finish_all(std::optional<double> divisor, std::vector<Real>& sums, std::size_t count, DType to,
                std::span<std::byte> out) {
  const std::size_t item = item_bytes(to);
  for (std::size_t at = 0; at < count; at += kStep) {
    end_sums(divisor, sums.data() + at);
    const auto part = std::span(sums).subspan(at, std::min(kStep, count - at));
    cast(kTypeOf<Real>, std::as_bytes(part), to, out.subspan(at * item, part.size() * item));
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
    finish_all(divisor, floats_, count_, to, out);
  } else {
    finish_all(divisor, doubles_, count_, to, out);
  }
}

double rounded(double number, Accumulator accumulator) {
  return accumulator == Accumulator::kFloat32 ? double{static_cast<float>(number)} : number;
}

}  // namespace fsdp::formats
