// SPDX-License-Identifier: Apache-2.0
// Weighted sums of whole checkpoints, key by key.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "formats/bytes/base/dtype.h"
#include "formats/changes/arrays/sum.h"
#include "formats/changes/edit/input_content.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/model/tensor_reader.h"

namespace fsdp::formats {

// Which values and tensors that are not floating are taken where inputs differ.
enum class Differing {
  kRefused,
  kFirst,  // the first input's
  kLast,   // the last input's
};

struct AverageOptions {
  arrays::SumRule rule;
  Differing differing = Differing::kRefused;
  std::optional<DType> dtype;  // of the sums; nothing: that of the first input
  VisitOptions compare;        // for tensors that must be equal
};

struct Average {
  std::shared_ptr<const Checkpoint> checkpoint;  // holds the inputs
  Value content;                                 // refers to `checkpoint`
  std::uint64_t summed = 0;                      // tensors
  std::uint64_t taken = 0;                       // tensors taken from one input
  std::uint64_t values = 0;
  std::uint64_t input_bytes = 0;  // of tensors read for the sums
};

// Sums floating tensors in the order of Note [order of a sum].  Step counts of optimizers, all
// other tensors and values must be equal, unless `differing` says which input's are taken.  The
// nesting, the order and the kinds of containers are those of the input that values are taken from.
// Tensors that are tied in every input stay tied.
// Requires: check_same_keys(inputs).  Lifetime: `options.rule` is copied.
// Throws: kMismatch naming key and inputs; kUnsupported for 8-bit tensors that have block scales
// beside them; the errors of reading.
Average average_of(std::vector<InputContent> inputs, const AverageOptions& options);

}  // namespace fsdp::formats
