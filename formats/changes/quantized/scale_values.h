// SPDX-License-Identifier: Apache-2.0
// What the values of scales, zero points and FP8 numbers say that shapes and dtypes do not.
#pragma once

#include <string>
#include <vector>

#include "formats/changes/quantized/scheme.h"
#include "formats/changes/quantized/stored_weight.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/model/finding.h"
#include "formats/state/model/tensor_reader.h"

namespace fsdp::formats::quantized {

// A weight whose tensors fit its scheme.
struct FittingWeight {
  StoredWeight stored;  // without arrays
  const Scheme* scheme = nullptr;
};

struct ValueChecks {
  Dialect dialect = Dialect::kCompressedTensors;
  bool symmetric = false;  // GPTQ: the configuration says that all zero points are the middle
  bool numbers = false;    // look for NaN in FP8 numbers too
  VisitOptions visit;
};

// Appends, without files: damage for scales that are NaN, infinite or negative, and zero where a
// scheme never writes zero; for scales of scales that make scales overflow; for NaN among FP8
// numbers; for zero points that contradict the configuration.
// Returns what is unusual without being wrong: scales that are denormal, that are zero where small
// weights become zero, or that are so large that weights become infinite.
// Reads the scales, and with `numbers` FP8 weights.  Throws: what reading throws.
std::vector<std::string> check_values(const Checkpoint& source,
                                      const std::vector<FittingWeight>& weights,
                                      const ValueChecks& checks, Findings& findings);

}  // namespace fsdp::formats::quantized
