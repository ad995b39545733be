// SPDX-License-Identifier: Apache-2.0
// Makes a LoRA adapter of what training changed: the reverse of merging one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "formats/bytes/base/dtype.h"
#include "formats/changes/lora/model_pair.h"
#include "formats/containers/pickle/value.h"
#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats {

struct LoraExtractOptions {
  std::int64_t rank = 1;
  double alpha = 1;               // positive; the factor of the product is alpha / rank
  bool fan_in_fan_out = false;    // weights are [in, out]
  DType dtype = DType::kFloat32;  // of the matrices
  int passes = 4;                 // see Note [random projection]
  unsigned threads = 1;
  // Takes a tensor whole if it differs and is not a matrix, or has a smaller side than the rank: a
  // bias as it is, any other with its module (peft's modules_to_save).
  bool whole = false;
  std::function<bool(const std::string& name)> wanted;     // tensors that are compared
  std::function<bool(const std::string& name)> embedding;  // weights of nn.Embedding
  std::function<void(std::uint64_t bytes)> on_bytes;       // read since the last call
};

struct ExtractedWeight {
  std::string name;
  std::vector<std::int64_t> shape;
  // The Frobenius norm of what the matrices, as written, leave of the difference, divided by the
  // norm of the difference.
  double error = 0;
  // The sum of the squares of the singular values that are kept, divided by the sum for all.
  double energy = 0;
};

struct LoraExtraction {
  std::unique_ptr<Checkpoint> checkpoint;  // the matrices under peft's keys
  Value content;                           // refers to it
  std::string config;                      // the text of adapter_config.json
  std::vector<ExtractedWeight> weights;    // in the order of their names
  std::uint64_t unchanged = 0;             // tensors that are equal in both
  std::uint64_t whole = 0;                 // tensors that the adapter holds as they are
};

// Finds, for each weight, the matrices of rank `options.rank` whose product is nearest to the
// difference.
// Throws: kMismatch if the two models have other names, shapes or dtypes (naming the nearest name),
// or if nothing differs; kUnsupported for a tensor that differs and is neither a matrix nor taken
// whole, for NaN and infinite elements, and for 8-bit weights with scales beside them; what reading
// throws; kNoSpace from the temporary file.
LoraExtraction extract_lora(const ModelTensors& base, const ModelTensors& tuned,
                            const LoraExtractOptions& options);

}  // namespace fsdp::formats
