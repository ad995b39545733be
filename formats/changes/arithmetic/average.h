// SPDX-License-Identifier: Apache-2.0
// Weighted sums of whole checkpoints, key by key.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "formats/bytes/base/dtype.h"
#include "formats/changes/arithmetic/input_content.h"
#include "formats/changes/arithmetic/sum_source.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/model/tensor_reader.h"

namespace fsdp::formats {

// What becomes of values, and of tensors that are no floating numbers, where inputs differ.
enum class Differing {
  kRefused,
  kFirst,  // those of the first input are taken
  kLast,   // those of the last one
};

struct AverageOptions {
  SumRule rule;
  Differing differing = Differing::kRefused;
  std::optional<DType> dtype;  // of the sums; nothing: that of the first input
  VisitOptions compare;        // for tensors that have to be equal
};

struct Average {
  std::shared_ptr<const Checkpoint> checkpoint;  // holds the inputs
  Value content;                                 // refers to `checkpoint`
  std::uint64_t summed = 0;                      // tensors
  std::uint64_t taken = 0;                       // tensors that are those of an input
  std::uint64_t values = 0;
  std::uint64_t input_bytes = 0;  // of tensors that are read for the sums
};

// Floating tensors become sums, in the order of Note [order of a sum]; an optimizer's step counts,
// all other tensors and values have to be equal, see `differing`.  The nesting, the order and the
// kinds of containers are those of the input that values are taken from.  Tensors that are tied in
// every input stay so.
// Requires: check_same_keys(inputs).  Lifetime: `options.rule` is copied.
// Throws: kMismatch naming key and inputs; kUnsupported for tensors of 8 bits with scales of blocks
// beside them; what reading throws.
Average average_of(std::vector<InputContent> inputs, const AverageOptions& options);

}  // namespace fsdp::formats
