// SPDX-License-Identifier: Apache-2.0
// Compares the quantized weights of a model with what its configuration says of them.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "formats/bytes/base/json.h"
#include "formats/changes/quantized/scheme.h"
#include "formats/containers/pickle/value.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/model/finding.h"
#include "formats/state/model/tensor_reader.h"

namespace fsdp::formats::quantized {

struct ExamineOptions {
  bool values = true;   // of scales, too; otherwise dtypes, shapes, and what tells the shapes
  bool numbers = true;  // with `values`: NaN among FP8 weights, too
  bool tied = false;    // the model's configuration says that the head is the embedding
  VisitOptions visit;   // of what is read
};

struct ExaminedModel {
  Findings findings;
  // The schemes of weights without faults, and how many weights each has.
  std::vector<std::pair<std::string, std::size_t>> weights;
  std::vector<std::string> notes;  // what is unusual, see check_values
  std::string left;                // what was not compared, and why; empty: nothing
};

// `config`: the quantization_config that `settings` were read from.
// Findings have kQuantTensors (a weight lacks tensors, or they have other dtypes or shapes than its
// scheme says), kQuantValues (check_values) or kQuantConfig (compare_modules).
// Throws: what reading throws; kOverflow.
ExaminedModel examine_model(const Checkpoint& source, const Value& tensors, const Json& config,
                            const Settings& settings, const ExamineOptions& options);

}  // namespace fsdp::formats::quantized
