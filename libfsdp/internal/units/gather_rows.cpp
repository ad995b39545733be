// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/units/gather_rows.h"

#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/Functions.h>

#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/units/unit.h"

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

at::Tensor gather_rows(const Parameter& parameter, const at::Tensor& rows,
                       const std::string& what) {
  const ShardLayout& layout = parameter.layout;
  at::Tensor padded = rows.reshape({-1});
  if (rows.numel() != layout.padded_numel()) {
    padded = at::zeros({layout.padded_numel()}, rows.options());
    padded.narrow(0, 0, rows.numel()).copy_(rows.reshape({-1}));
  }
  const at::Tensor block = joined(gather_blocks(*parameter.unit, padded, what), layout, 0);
  return gather_placed(parameter, block, what);
}

at::Tensor gather_placed(const Parameter& parameter, const at::Tensor& block,
                         const std::string& what) {
  at::Tensor result = block;
  const auto& placements = parameter.placed.placements;
  // Undoes the last cut first.
  for (std::size_t cuts = placements.size(); cuts-- > 0;) {
    const Placement& placement = placements[cuts];
    const auto& group = placement.mesh.group();
    const PlacedParameter before{
        parameter.placed.shape, {placements.begin(), placements.begin() + static_cast<long>(cuts)}};
    const std::int64_t size = layout_of(before).shape[static_cast<std::size_t>(placement.dim)];
    const std::int64_t share = (size + group->size() - 1) / group->size();
    // The ranks' parts are sent with the dimension of the cut first.
    const at::Tensor own = result.to(parameter.unit->compute_device).transpose(0, placement.dim);
    std::vector<std::int64_t> shape = own.sizes().vec();
    shape[0] = share;
    const at::Tensor input = at::zeros(shape, own.options());
    input.narrow(0, 0, own.size(0)).copy_(own);
    shape[0] = share * group->size();
    const at::Tensor parts = at::empty(shape, own.options());
    all_gather(group, parts, input, what + " along '" + placement.mesh.name(0) + "'").wait();
    result = parts.narrow(0, 0, size).transpose(0, placement.dim).contiguous();
  }
  return result;
}

at::Tensor block_of(const at::Tensor& whole, const ShardLayout& layout) {
  at::Tensor result = whole;
  for (std::size_t dim = 0; dim < layout.offset.size(); ++dim)
    result = result.narrow(static_cast<std::int64_t>(dim), layout.offset[dim], layout.shape[dim]);
  return result;
}

at::Tensor rows_of(const at::Tensor& block, const ShardLayout& layout, int rank) {
  return block.reshape({layout.rows, layout.row_numel})
      .narrow(0, layout.first_row(rank), layout.rows_of(rank))
      .reshape(layout.shape_of(rank));
}

DeviceMesh cut_over(const Parameter& parameter) {
  const Sharding& sharding = *parameter.unit->sharding;
  const DeviceMesh& mesh = *sharding.device_mesh;
  std::vector<std::string> names;
  for (const Placement& placement : parameter.placed.placements)
    names.push_back(placement.mesh.name(0));
  if (sharding.world_size() > 1) names.push_back(mesh.name(mesh.ndim() - 1));
  return mesh.root().select(names);
}

ShardedTensor sharded_tensor(const Parameter& parameter, at::Tensor rows) {
  const Sharding& sharding = *parameter.unit->sharding;
  ShardedTensor result;
  result.layout = parameter.layout;
  result.part = sharding.rank();
  if (sharding.device_mesh) {
    const DeviceMesh over = cut_over(parameter);
    std::tie(result.replica, result.replica_count) = over.copy();
    result.over = over.text() + " of " + over.root().text();
  } else if (const auto& replicas = sharding.mesh.replicate) {
    result.replica = replicas->rank();
    result.replica_count = replicas->size();
  }
  result.local = std::move(rows);
  return result;
}

bool is_first_rank(const Unit& unit) noexcept {
  if (unit.sharding->device_mesh) return unit.sharding->device_mesh->all_ranks()->rank() == 0;
  const auto& replicas = unit.sharding->mesh.replicate;
  return unit.sharding->rank() == 0 && (!replicas || replicas->rank() == 0);
}

}  // namespace fsdp::internal
