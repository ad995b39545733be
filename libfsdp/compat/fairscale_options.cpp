// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/fairscale_options.h"

#include <algorithm>

#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/left_out.h"

namespace fsdp {

StrategyOptions strategy_options(const DDPFullyShardedOptions& given) {
  const DDPFullyShardedOptions options = internal::with_option_left_out(given);
  FSDP_CHECK(options.move_grads_to_cpu.value_or(options.cpu_offload) == options.cpu_offload,
             "move_grads_to_cpu is ", *options.move_grads_to_cpu, " and cpu_offload is ",
             options.cpu_offload,
             ": gradients are on the device of their parameters; leave move_grads_to_cpu out");
  FSDP_CHECK(!options.fp32_reduce_scatter || options.compute_dtype,
             "fp32_reduce_scatter is for mixed precision: give a compute_dtype");
  StrategyOptions result;
  result.state_dict_to_cpu = options.state_dict_to_cpu;
  FsdpOptions& fsdp = result.fsdp;
  fsdp.cpu_offload.offload_params = options.cpu_offload;
  fsdp.use_orig_params = !options.flatten_parameters;
  fsdp.sharding_strategy =
      options.reshard_after_forward ? ShardingStrategy::kFullShard : ShardingStrategy::kShardGradOp;
  fsdp.mixed_precision.param_dtype = options.compute_dtype;
  if (options.fp32_reduce_scatter.value_or(false))
    fsdp.mixed_precision.reduce_dtype = c10::ScalarType::Float;
  fsdp.bucket_bytes = std::max<std::int64_t>(options.bucket_cap_mb, 0) << 20;
  fsdp.auto_wrap_policy = size_based_auto_wrap_policy(options.min_num_params);
  return result;
}

}  // namespace fsdp
