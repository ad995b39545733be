// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/placement.h"

#include <utility>

#include <c10/util/ArrayRef.h>

#include "libfsdp/internal/comm/errors.h"

namespace fsdp {

ShardLayout layout_of(const PlacedParameter& parameter) {
  std::vector<Cut> cuts;
  for (const Placement& placement : parameter.placements) {
    const auto& group = placement.mesh.group();
    FSDP_CHECK(
        placement.dim >= 0 && static_cast<std::size_t>(placement.dim) < parameter.shape.size(),
        "a parameter of shape ", at::IntArrayRef(parameter.shape), " has no dimension ",
        placement.dim, " to be cut over '", placement.mesh.name(0), "'");
    cuts.push_back({placement.dim, group->rank(), group->size()});
  }
  return shard_layout(parameter.shape, std::move(cuts), 1);
}

}  // namespace fsdp
