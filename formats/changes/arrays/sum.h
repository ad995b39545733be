// SPDX-License-Identifier: Apache-2.0
// Weighted sums of tensors.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "formats/changes/arithmetic/weighted_sum.h"
#include "formats/changes/arrays/array.h"

namespace fsdp::formats::arrays {

// How arrays are added up; see Note [order of a sum].
struct SumRule {
  std::vector<double> weights;  // of each array
  std::optional<double> divisor;
  Accumulator accumulator = Accumulator::kFloat32;
};

// Requires: one array for each weight, of floating dtypes and one shape.
Array sum_of(std::vector<Array> arrays, std::shared_ptr<const SumRule> rule, DType to);

}  // namespace fsdp::formats::arrays
