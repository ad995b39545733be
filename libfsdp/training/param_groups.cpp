// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/param_groups.h"

#include "libfsdp/fully_sharded.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/units/shard_tensor.h"

namespace fsdp {
using namespace internal;

std::vector<std::int64_t> original_shape(const at::Tensor& tensor) {
  const ShardKind kind = shard_kind(tensor);
  FSDP_CHECK(kind != ShardKind::kFlat,
             "original_shape: a flat tensor holds several parameters: set use_orig_params");
  return kind == ShardKind::kOne ? whole_shape(tensor) : tensor.sizes().vec();
}

DecayGroups decay_groups(const ShardedModule& module) {
  FSDP_CHECK(!module.has_flat_parameters(),
             "decay_groups: flat tensors hold several parameters each: set use_orig_params");
  DecayGroups groups;
  for (const at::Tensor& parameter : module.parameters())
    (original_shape(parameter).size() > 1 ? groups.decayed : groups.not_decayed)
        .push_back(parameter);
  return groups;
}

}  // namespace fsdp
