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
    result = gather_along(result.to(parameter.unit->compute_device), placement.dim, size, group,
                          what + " along '" + placement.mesh.name(0) + "'");
  }
  return result;
}

at::Tensor gather_along(const at::Tensor& part, std::int64_t dim, std::int64_t size,
                        const std::shared_ptr<ProcessGroup>& group, const std::string& what) {
  const std::int64_t share = (size + group->size() - 1) / group->size();
  const at::Tensor input = padded_along(part, dim, share);
  std::vector<std::int64_t> shape = input.sizes().vec();
  shape[0] = share * group->size();
  const at::Tensor result = at::empty(shape, input.options());
  all_gather(group, result, input, what).wait();
  return result.narrow(0, 0, size).transpose(0, dim).contiguous();
}

at::Tensor padded_along(const at::Tensor& tensor, std::int64_t dim, std::int64_t size) {
  const at::Tensor first = tensor.transpose(0, dim);
  if (first.size(0) == size) return first.contiguous();
  std::vector<std::int64_t> shape = first.sizes().vec();
  shape[0] = size;
  at::Tensor result = at::zeros(shape, first.options());
  result.narrow(0, 0, first.size(0)).copy_(first);
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
