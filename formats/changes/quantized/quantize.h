// SPDX-License-Identifier: Apache-2.0
// The weights of a model, quantized by round to nearest from the weights alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/bytes/base/dtype.h"
#include "formats/bytes/base/json.h"
#include "formats/changes/quantized/scheme.h"
#include "formats/containers/pickle/value.h"
#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats::quantized {

struct QuantizeRequest {
  Dialect dialect = Dialect::kCompressedTensors;  // or kModelOpt, kTransformersFp8
  std::string word;                               // of the scheme: "fp8-channel"
  std::optional<std::int64_t> group;              // elements of a row that share a scale
  std::optional<DType> dtype;                     // cast floating tensors to it first
  // Tells modules that stay as they are, by their names.
  std::function<bool(const std::string& module)> skip;
};

struct QuantizedModel {
  std::shared_ptr<const Checkpoint> checkpoint;  // reads the source
  Value content;                                 // tensors by name
  Json config;                                   // the quantization_config
  std::string scheme;                            // for messages
  std::int64_t group = 0;         // elements of a row that share a scale; 0: no groups
  std::size_t weights = 0;        // that were quantized
  std::vector<std::string> kept;  // modules with a matrix that was not
};

// Quantizes each tensor NAME.weight that is a matrix of floating numbers, if its module is not
// skipped, and is not an embedding, a head or a gate by its name.  Which modules are linear layers
// a checkpoint does not say: every matrix that is not kept is taken for the weight of one.
// Lifetime: `source` outlives the result.
// Throws: kUsage for an unknown word, and for a size of groups that the scheme does not have or
// that the dialect's configuration cannot say; kShape naming a matrix whose rows the scheme cannot
// divide; kDtype for weights of other dtypes than bfloat16, float16 and float32; kNotFound if
// nothing is left to quantize; kUnsupported for a model that is quantized already, and for a matrix
// whose bias says that it is not the weight of a linear layer.
QuantizedModel quantized_model(const Checkpoint& source, const Value& tensors,
                               const QuantizeRequest& request);

}  // namespace fsdp::formats::quantized
