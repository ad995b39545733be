// SPDX-License-Identifier: Apache-2.0
// The options of Lightning's DDPFullyShardedStrategy (FairScale's fully sharded training), for
// programs that come from there.
#pragma once

#include <cstdint>
#include <optional>

#include <c10/core/ScalarType.h>

#include "libfsdp/strategy.h"

namespace fsdp {

// Names, meanings and defaults follow pytorch_lightning.strategies.DDPFullyShardedStrategy.
struct DDPFullyShardedOptions {
  bool cpu_offload = false;
  bool flatten_parameters = true;     // one flat tensor a unit for the optimizer
  bool reshard_after_forward = true;  // FULL_SHARD, else SHARD_GRAD_OP
  // Gradients lie where the shards lie: must equal cpu_offload if given.
  std::optional<bool> move_grads_to_cpu;
  std::optional<bool> fp32_reduce_scatter;  // with mixed precision only
  // The dtype of parameters in forward and backward; default: their own.
  std::optional<c10::ScalarType> compute_dtype;
  // Units that fit together share their collectives; 0 or less: each has its own.
  std::int64_t bucket_cap_mb = 25;
  // Modules of at least this many elements become units, unless they were marked by wrap().
  std::int64_t min_num_params = 100'000'000;
  bool state_dict_to_cpu = true;
};

// Converts to the options of the strategy.
// Throws: c10::Error if move_grads_to_cpu differs from cpu_offload, or fp32_reduce_scatter is given
// without compute_dtype.
StrategyOptions strategy_options(const DDPFullyShardedOptions& options);

}  // namespace fsdp
