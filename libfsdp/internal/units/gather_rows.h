// SPDX-License-Identifier: Apache-2.0
// Builds whole tensors from every rank's rows, and takes rows from whole tensors.
#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "libfsdp/shard_layout.h"
#include "libfsdp/state_value.h"

namespace fsdp::internal {

struct Unit;

// Collective over the unit's sharding group.  Takes `local` [N] of every rank.
// Returns: [W, N]; a view of `local` if one rank holds everything.
at::Tensor gather_blocks(const Unit& unit, const at::Tensor& local, const std::string& what);

// Builds a tensor from the parts that ranks hold of it, at `offset` in their blocks [W, N].
// Returns: separate memory, no more than the tensor needs.
at::Tensor joined(const at::Tensor& blocks_WN, const ShardLayout& layout, std::int64_t offset);

// Collective over the unit's sharding group.  Builds a tensor from all ranks' rows.  Memory: as
// joined().
at::Tensor gather_rows(const Unit& unit, const at::Tensor& rows, const ShardLayout& layout,
                       const std::string& what);

// Returns a rank's rows; a view if the whole is contiguous.
at::Tensor rows_of(const at::Tensor& whole, const ShardLayout& layout, int rank);

// Returns this rank's rows of a tensor that is cut like the unit's parameters.
ShardedTensor sharded_tensor(const Unit& unit, const ShardLayout& layout, at::Tensor rows);

// Returns whether this is the first rank of the first copy of the unit.
bool is_first_rank(const Unit& unit) noexcept;

}  // namespace fsdp::internal
