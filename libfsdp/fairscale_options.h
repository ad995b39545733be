// SPDX-License-Identifier: Apache-2.0
// The options of Lightning's DDPFullyShardedStrategy (FairScale's fully sharded training), for
// programs that come from there.
#pragma once

#include <cstdint>
#include <optional>

#include <c10/core/ScalarType.h>

#include "libfsdp/strategy.h"

namespace fsdp {

// Names, meanings and defaults are those of pytorch_lightning.strategies.DDPFullyShardedStrategy.
struct DDPFullyShardedOptions {
  bool cpu_offload = false;
  bool flatten_parameters = true;     // one flat tensor a unit for the optimizer
  bool reshard_after_forward = true;  // FULL_SHARD, else SHARD_GRAD_OP
  // Gradients lie where the shards lie: what cpu_offload says, or not given.
  std::optional<bool> move_grads_to_cpu;
  std::optional<bool> fp32_reduce_scatter;  // of mixed precision alone
  // Of parameters in forward and backward; not given: what they are.
  std::optional<c10::ScalarType> compute_dtype;
  // Units that fit together share their collectives; 0 or less: each has its own.
  std::int64_t bucket_cap_mb = 25;
  // Modules of at least this many elements become units, unless they were marked by wrap().
  std::int64_t min_num_params = 100'000'000;
  bool state_dict_to_cpu = true;
};

// The same, as options of the strategy.
// Throws: c10::Error where move_grads_to_cpu differs from cpu_offload, or fp32_reduce_scatter is
// given without compute_dtype.
StrategyOptions strategy_options(const DDPFullyShardedOptions& options);

}  // namespace fsdp
