// SPDX-License-Identifier: Apache-2.0
// Finds the part of the whole tensor in a DTensor or ShardedTensor that a rank saved on its own
// with torch.save.
// Source: torch/distributed/tensor and torch/distributed/_shard of PyTorch 2.0 to 2.11;
// docs/formats/per_rank.md.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "formats/state/content/tensor_value.h"
#include "formats/state/model/box.h"

namespace fsdp::formats {

// How one dimension of a device mesh cuts a tensor.
struct Placement {
  bool shards = false;
  std::int64_t dim = 0;           // of the tensor
  std::int64_t split_factor = 1;  // other than 1: cut after the mesh dimensions to the right
};

struct ShardedValue {
  struct Local {
    Box box;
    TensorValue tensor;  // of box's size.  Lifetime: that of the value it was read from
  };
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;    // of the whole tensor
  std::vector<Local> locals;          // this rank's parts, without empty boxes
  std::int64_t ranks = 1;             // ranks that share the tensor; 1 if unknown
  std::vector<std::int64_t> mesh;     // of a DTensor: the sizes of its mesh ...
  std::vector<Placement> placements;  // ... and what each of its dimensions does
};

// Returns nothing if `value` is neither a DTensor nor a ShardedTensor.
// Throws: kUnsupported (partial sums, unknown placements), kMetaType, kBounds, kShape, kDtype.
std::optional<ShardedValue> sharded_value(const Value& value);

// Returns the box of the rank at `coordinate` in a mesh of `mesh` sizes; dimensions are cut by
// torch.chunk's rule, so the last ranks may have less, or nothing.
// Throws: kUnsupported if split factors do not fit the mesh.
Box placed_box(std::span<const std::int64_t> shape, std::span<const std::int64_t> mesh,
               std::span<const std::int64_t> coordinate, std::span<const Placement> placements);

}  // namespace fsdp::formats
