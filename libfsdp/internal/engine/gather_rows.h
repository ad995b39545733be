// SPDX-License-Identifier: Apache-2.0
// Whole tensors out of every rank's rows, and rows out of whole tensors.
#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "libfsdp/internal/engine/shard_layout.h"
#include "libfsdp/state_value.h"

namespace fsdp {

class Engine;

// Collective over the sharding group.  `local` [N] of every rank, on the device of compute; a view
// of `local` where one rank holds everything.  Returns: [W, N].
at::Tensor gather_blocks(Engine& engine, const at::Tensor& local, const std::string& what);

// A tensor out of what ranks hold of it from `offset` on in their blocks [W, N].
// Returns: memory of its own, and no more of it than the tensor needs.
at::Tensor joined(const at::Tensor& blocks_WN, const ShardLayout& layout, std::int64_t offset);

// Collective over the sharding group.  A tensor out of this rank's rows.  Memory: as joined().
at::Tensor gather_rows(Engine& engine, const at::Tensor& rows, const ShardLayout& layout,
                       const std::string& what);

// A view where the whole is contiguous.
at::Tensor rows_of(const at::Tensor& whole, const ShardLayout& layout, int rank);

// This rank's rows of a tensor that is cut like the engine's parameters.
ShardedTensor sharded_tensor(const Engine& engine, const ShardLayout& layout, at::Tensor rows);

// Whether this is the first rank of the first copy.
bool is_first_rank(const Engine& engine) noexcept;

}  // namespace fsdp
