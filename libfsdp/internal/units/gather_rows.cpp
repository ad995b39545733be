// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/units/gather_rows.h"

#include <utility>

#include <ATen/Functions.h>

#include "libfsdp/internal/comm/collectives.h"

namespace fsdp::internal {

at::Tensor gather_blocks(const Unit& unit, const at::Tensor& local, const std::string& what) {
  const auto& ranks = unit.sharding->mesh.shard;
  if (ranks->size() == 1) return local.view({1, -1});
  const at::Tensor input = local.to(unit.compute_device).contiguous();
  at::Tensor blocks = at::empty({ranks->size(), local.numel()}, input.options());
  if (local.numel() == 0) return blocks;
  all_gather(ranks, blocks, input, what).wait();
  return blocks;
}

at::Tensor joined(const at::Tensor& blocks_WN, const ShardLayout& layout, std::int64_t offset) {
  const std::int64_t padded = layout.padded_numel();
  const at::Tensor whole = at::empty({blocks_WN.size(0), padded}, blocks_WN.options());
  whole.copy_(blocks_WN.narrow(1, offset, padded));
  const at::Tensor result = whole.view({-1}).narrow(0, 0, layout.numel()).view(layout.shape);
  return whole.numel() == layout.numel() ? result : result.clone();
}

at::Tensor gather_rows(const Unit& unit, const at::Tensor& rows, const ShardLayout& layout,
                       const std::string& what) {
  if (rows.numel() == layout.padded_numel())
    return joined(gather_blocks(unit, rows.reshape({-1}), what), layout, 0);
  const at::Tensor padded = at::zeros({layout.padded_numel()}, rows.options());
  padded.narrow(0, 0, rows.numel()).copy_(rows.reshape({-1}));
  return joined(gather_blocks(unit, padded, what), layout, 0);
}

at::Tensor rows_of(const at::Tensor& whole, const ShardLayout& layout, int rank) {
  return whole.reshape({layout.rows, layout.row_numel})
      .narrow(0, layout.first_row(rank), layout.rows_of(rank))
      .reshape(layout.shape_of(rank));
}

ShardedTensor sharded_tensor(const Unit& unit, const ShardLayout& layout, at::Tensor rows) {
  ShardedTensor result;
  result.layout = layout;
  result.part = unit.sharding->rank();
  if (const auto& replicas = unit.sharding->mesh.replicate) {
    result.replica = replicas->rank();
    result.replica_count = replicas->size();
  }
  result.local = std::move(rows);
  return result;
}

bool is_first_rank(const Unit& unit) noexcept {
  const auto& replicas = unit.sharding->mesh.replicate;
  return unit.sharding->rank() == 0 && (!replicas || replicas->rank() == 0);
}

}  // namespace fsdp::internal
