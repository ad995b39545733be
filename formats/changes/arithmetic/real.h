// SPDX-License-Identifier: Apache-2.0
// The types of computations: float and double.
#pragma once

#include <limits>

#include "formats/bytes/base/dtype.h"
#include "formats/bytes/base/vector_clones.h"

namespace fsdp::formats {

template <typename Real>
constexpr DType kTypeOf = sizeof(Real) == sizeof(float) ? DType::kFloat32 : DType::kFloat64;

// Returns the number, or for any NaN the quiet one without a sign: which NaN an operation makes
// depends on the processor.
template <typename Real>
FSDP_INTO_CALLER Real settled(Real number) {
  return number != number ? std::numeric_limits<Real>::quiet_NaN() : number;
}

}  // namespace fsdp::formats
