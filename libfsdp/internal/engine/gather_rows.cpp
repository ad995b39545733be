// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/engine/gather_rows.h"

#include <utility>

#include <ATen/Functions.h>

#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/engine/engine.h"

namespace fsdp::internal {

at::Tensor gather_blocks(Engine& engine, const at::Tensor& local, const std::string& what) {
  const auto& ranks = engine.shard_group();
  if (ranks->size() == 1) return local.view({1, -1});
  const at::Tensor input = local.to(engine.streams().device()).contiguous();
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

at::Tensor gather_rows(Engine& engine, const at::Tensor& rows, const ShardLayout& layout,
                       const std::string& what) {
  if (rows.numel() == layout.padded_numel())
    return joined(gather_blocks(engine, rows.reshape({-1}), what), layout, 0);
  const at::Tensor padded = at::zeros({layout.padded_numel()}, rows.options());
  padded.narrow(0, 0, rows.numel()).copy_(rows.reshape({-1}));
  return joined(gather_blocks(engine, padded, what), layout, 0);
}

at::Tensor rows_of(const at::Tensor& whole, const ShardLayout& layout, int rank) {
  return whole.reshape({layout.rows, layout.row_numel})
      .narrow(0, layout.first_row(rank), layout.rows_of(rank))
      .reshape(layout.shape_of(rank));
}

ShardedTensor sharded_tensor(const Engine& engine, const ShardLayout& layout, at::Tensor rows) {
  ShardedTensor result;
  result.layout = layout;
  result.part = engine.shard_group()->rank();
  if (const auto& replicas = engine.replicate_group()) {
    result.replica = replicas->rank();
    result.replica_count = replicas->size();
  }
  result.local = std::move(rows);
  return result;
}

bool is_first_rank(const Engine& engine) noexcept {
  const auto& replicas = engine.replicate_group();
  return engine.shard_group()->rank() == 0 && (!replicas || replicas->rank() == 0);
}

}  // namespace fsdp::internal
