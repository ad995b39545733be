// SPDX-License-Identifier: Apache-2.0
// Builds whole tensors from every rank's rows, and takes rows from whole tensors.
#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "libfsdp/device_mesh.h"
#include "libfsdp/shard_layout.h"
#include "libfsdp/state_value.h"

namespace fsdp::internal {

struct Parameter;
struct Unit;

// Collective over the unit's sharding group.  Takes `local` [N] of every rank.
// Returns: [W, N]; a view of `local` if one rank holds everything.
at::Tensor gather_blocks(const Unit& unit, const at::Tensor& local, const std::string& what);

// Builds a tensor from the parts that ranks hold of it, at `offset` in their blocks [W, N].
// Returns: separate memory, no more than the tensor needs.
at::Tensor joined(const at::Tensor& blocks_WN, const ShardLayout& layout, std::int64_t offset);

// Collective over the unit's sharding group, and those of the parameter's placements.  Builds the
// whole of a tensor that is cut as the parameter is, from all ranks' rows.  Memory: as joined().
at::Tensor gather_rows(const Parameter& parameter, const at::Tensor& rows, const std::string& what);
// Collective over the groups of the parameter's placements.  Builds the whole tensor from the
// ranks' blocks; returns `block` itself if it is the whole.
at::Tensor gather_placed(const Parameter& parameter, const at::Tensor& block,
                         const std::string& what);

// Collective over `group`.  Joins the ranks' parts along `dim`, which is `size` in the result and
// is divided as torch.chunk divides it.  `part`: on the device of the group's collectives.
at::Tensor gather_along(const at::Tensor& part, std::int64_t dim, std::int64_t size,
                        const std::shared_ptr<ProcessGroup>& group, const std::string& what);
// Returns the tensor with `dim` first, padded with zeros to `size`; contiguous.
at::Tensor padded_along(const at::Tensor& tensor, std::int64_t dim, std::int64_t size);

// Returns the layout's block of the whole; a view.
at::Tensor block_of(const at::Tensor& whole, const ShardLayout& layout);

// Returns a rank's rows of the block; a view if it is contiguous.
at::Tensor rows_of(const at::Tensor& block, const ShardLayout& layout, int rank);

// Returns the dimensions of the mesh that cut the parameter.  Requires: its sharding has a mesh.
DeviceMesh cut_over(const Parameter& parameter);

// Returns this rank's rows of a tensor that is cut as the parameter is.
ShardedTensor sharded_tensor(const Parameter& parameter, at::Tensor rows);

// Returns whether this is the first rank of the first copy of the unit.
bool is_first_rank(const Unit& unit) noexcept;

}  // namespace fsdp::internal
