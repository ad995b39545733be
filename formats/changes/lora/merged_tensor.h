// SPDX-License-Identifier: Apache-2.0
// A tensor of the base with what adapters do to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "formats/bytes/base/dtype.h"
#include "formats/changes/arrays/array_source.h"

namespace fsdp::formats {

// What one adapter does to one tensor; numbers are positions in the adapter's index.
struct LoraStep {
  enum class Kind : std::uint8_t { kUpdate, kBias, kRows };
  Kind kind = Kind::kUpdate;
  std::size_t adapter = 0;
  std::size_t a = 0;  // of kUpdate
  std::size_t b = 0;  // of kUpdate and kBias; of kRows: the rows themselves
  std::uint64_t rank = 1;
  double scale = 1;
  bool turned = false;  // the weight is [in, out]
  // The number of weights stacked in a tensor of three dimensions, each with its own matrices; 0:
  // the tensor is one weight.
  std::uint64_t experts = 0;
  std::optional<std::size_t> magnitude;  // of DoRA
  std::vector<std::uint64_t> rows;       // of kRows: their places
};

// A tensor to compute.
struct MergedTensor {
  std::optional<std::size_t> base;                                 // position in the base's index
  std::optional<std::pair<std::size_t, std::size_t>> replacement;  // adapter, position; instead
  std::vector<LoraStep> steps;
};

// Returns the tensor with its steps.  `sources`: the base, then the adapters.
// Updates without others between them are one computation, see Note [order of a low-rank update].
// After each update that has magnitudes (DoRA), rows are scaled as with_lengths does.  Between
// computations, elements have the type of the computation.
// Requires: shapes fit.
arrays::Array merged_tensor(std::span<const std::shared_ptr<arrays::ArraySource>> sources,
                            const MergedTensor& tensor, DType to);

}  // namespace fsdp::formats
