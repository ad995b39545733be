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
  // Takes tensors whole that differ and are no matrices, or have a smaller side than the rank:
  // biases as they are, other ones with their module (peft's modules_to_save).
  bool whole = false;
  std::function<bool(const std::string& name)> wanted;     // tensors that are looked at
  std::function<bool(const std::string& name)> embedding;  // weights of nn.Embedding
  std::function<void(std::uint64_t bytes)> on_bytes;       // read since the call before
};

struct ExtractedWeight {
  std::string name;
  std::vector<std::int64_t> shape;
  // The length of what the matrices, as written, leave of the difference, divided by the
  // difference's (Frobenius norms).
  double error = 0;
  // The sum of the squares of the singular values that are kept, divided by that of all.
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

// Finds the matrices of that rank whose product is nearest to each weight's difference.
// Throws: kMismatch if the two have other names, shapes or dtypes, naming the nearest, and if
// nothing differs; kUnsupported for what differs and is neither a matrix nor taken whole, for NaN
// and infinite elements, and for 8-bit weights with scales beside them; what reading throws;
// kNoSpace from the temporary file.
LoraExtraction extract_lora(const ModelTensors& base, const ModelTensors& tuned,
                            const LoraExtractOptions& options);

}  // namespace fsdp::formats
