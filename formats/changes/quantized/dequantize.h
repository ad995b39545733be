// SPDX-License-Identifier: Apache-2.0
// A model with quantized weights as the model that its own library computes with.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "formats/bytes/base/dtype.h"
#include "formats/bytes/base/error.h"
#include "formats/changes/quantized/scheme.h"
#include "formats/changes/quantized/stored_weight.h"
#include "formats/containers/pickle/value.h"
#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats::quantized {

struct DequantizedModel {
  std::shared_ptr<const Checkpoint> checkpoint;  // reads the source
  Value content;                                 // tensors by name
  // The schemes of weights, and how many weights each had.
  std::vector<std::pair<std::string, std::size_t>> weights;
  // Names of tensors that only a quantized model has: scales of activations and of caches.
  std::vector<std::string> left_out;
};

// Makes each quantized weight a tensor NAME.weight of dtype `to`: in the arithmetic of the
// dialect's own library, so that every bit is the same.  Other tensors stay.  What the
// configuration says of a weight is compared with the dtypes and shapes of its tensors. Lifetime:
// `source` outlives the result. Throws: kMismatch naming a weight whose tensors no scheme explains,
// with the reason; kNotFound for a weight without its scales and for a model without quantized
// weights; kUnsupported for tensors that change what the weight means.
DequantizedModel dequantized_model(const Checkpoint& source, const Value& tensors,
                                   const Settings& settings, DType to);

// Receives what a model's tensors say, one by one.
struct WeightVisitor {
  // Gets the name of a weight that one scheme explains, with its tensors and that scheme.
  std::function<void(const std::string& name, const StoredWeight&, const Scheme&)> on_weight;
  // Gets what dequantized_model would throw of a tensor: its name, and the symptom.
  std::function<void(const std::string& name, ErrorCode, const std::string& symptom)> on_fault;
};

// Looks at all tensors as dequantized_model does, and makes nothing of them.  Reads the small
// tensors that tell shapes.  Throws: what reading throws; kOverflow.
void visit_weights(const Checkpoint& source, const Value& tensors, const Settings& settings,
                   const WeightVisitor& visitor);

}  // namespace fsdp::formats::quantized
