// SPDX-License-Identifier: Apache-2.0
// A tensor of the base with what adapters do to it, computed while it is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "formats/bytes/base/dtype.h"
#include "formats/changes/arithmetic/computed_checkpoint.h"
#include "formats/changes/arithmetic/input_reader.h"
#include "formats/changes/arithmetic/low_rank.h"
#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats {

// What one adapter does to one tensor; numbers are positions in the adapter's index.
struct LoraStep {
  enum class Kind : std::uint8_t { kUpdate, kBias, kRows };
  Kind kind = Kind::kUpdate;
  std::size_t adapter = 0;
  std::size_t a = 0;  // of kUpdate
  std::size_t b = 0;  // of kUpdate and kBias
  std::uint64_t rank = 1;
  double scale = 1;
  bool turned = false;  // the weight is [in, out]
  // The number of weights stacked in a tensor of three dimensions, each with its own matrices; 0:
  // the tensor is one weight.
  std::uint64_t experts = 0;
  std::optional<std::size_t> magnitude;  // of DoRA
  std::size_t values = 0;                // of kRows: the rows themselves
  std::vector<std::uint64_t> rows;       // of kRows: their places
};

// A tensor to compute.
struct MergedTensor {
  std::optional<std::size_t> base;                                 // position in the base's index
  std::optional<std::pair<std::size_t, std::size_t>> replacement;  // adapter, position; instead
  std::vector<LoraStep> steps;
};

// Everything that is read while the output is written.
struct LoraOperands {
  explicit LoraOperands(std::shared_ptr<const Checkpoint> whole) : base(std::move(whole)) {}

  std::shared_ptr<const Checkpoint> base;
  std::vector<std::shared_ptr<const Checkpoint>> adapters;
  StorageChecks base_checks{true};
  // One for each adapter: file names are unique only within a checkpoint.
  std::vector<std::unique_ptr<StorageChecks>> checks;

  // Returns the tensor that the first step starts from.
  InputTensor start(const MergedTensor& tensor) const;
  // Compares the checksums that are still open.
  void finish();
};

// Returns the tensor with its steps, computed while it is read.
// See Note [order of a low-rank update].  After each update that has magnitudes (DoRA), rows are
// scaled as scaled_source does.
// Requires: shapes fit.
ComputedTensor merged_tensor(std::shared_ptr<LoraOperands> operands, MergedTensor tensor, DType to);

// Returns whether two tensors of one checkpoint have the same dtype, shape and bits.
bool equal_tensors(const Checkpoint& checkpoint, std::size_t one, std::size_t other);

}  // namespace fsdp::formats
