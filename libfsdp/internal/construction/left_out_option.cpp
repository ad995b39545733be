// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/construction/left_out_option.h"

#ifdef FSDP_LEAVE_OUT_CALLS

#include <cstdlib>
#include <functional>
#include <map>
#include <string>

#include "libfsdp/internal/comm/errors.h"

namespace fsdp::internal {

void leave_out_option(FsdpOptions& options) {
  static const char* const name = std::getenv("FSDP_IGNORE_OPTION");
  if (name == nullptr || *name == '\0') return;
  const FsdpOptions defaults;
  MixedPrecision& precision = options.mixed_precision;
  const auto reset = [](auto& value, const auto& by) {
    return std::function<void()>([&value, &by] { value = by; });
  };
  const std::map<std::string, std::function<void()>> known{
      {"replicate_group", reset(options.replicate_group, defaults.replicate_group)},
      {"node_size", reset(options.node_size, defaults.node_size)},
      {"sharding_strategy", reset(options.sharding_strategy, defaults.sharding_strategy)},
      {"cpu_offload", reset(options.cpu_offload, defaults.cpu_offload)},
      {"auto_wrap_policy", reset(options.auto_wrap_policy, defaults.auto_wrap_policy)},
      {"backward_prefetch", reset(options.backward_prefetch, defaults.backward_prefetch)},
      {"param_dtype", reset(precision.param_dtype, defaults.mixed_precision.param_dtype)},
      {"reduce_dtype", reset(precision.reduce_dtype, defaults.mixed_precision.reduce_dtype)},
      {"buffer_dtype", reset(precision.buffer_dtype, defaults.mixed_precision.buffer_dtype)},
      {"keep_low_precision_grads", reset(precision.keep_low_precision_grads,
                                         defaults.mixed_precision.keep_low_precision_grads)},
      {"cast_forward_inputs",
       reset(precision.cast_forward_inputs, defaults.mixed_precision.cast_forward_inputs)},
      {"cast_root_forward_inputs", reset(precision.cast_root_forward_inputs,
                                         defaults.mixed_precision.cast_root_forward_inputs)},
      {"module_classes_to_ignore", reset(precision.module_classes_to_ignore,
                                         defaults.mixed_precision.module_classes_to_ignore)},
      {"ignored_modules", reset(options.ignored_modules, defaults.ignored_modules)},
      {"ignored_states", reset(options.ignored_states, defaults.ignored_states)},
      {"param_init_fn", reset(options.param_init_fn, defaults.param_init_fn)},
      {"device_id", reset(options.device_id, defaults.device_id)},
      {"sync_module_states", reset(options.sync_module_states, defaults.sync_module_states)},
      {"forward_prefetch", reset(options.forward_prefetch, defaults.forward_prefetch)},
      {"limit_all_gathers", reset(options.limit_all_gathers, defaults.limit_all_gathers)},
      {"use_orig_params", reset(options.use_orig_params, defaults.use_orig_params)},
      {"bucket_bytes", reset(options.bucket_bytes, defaults.bucket_bytes)},
      {"activation_checkpointing_policy",
       reset(options.activation_checkpointing_policy, defaults.activation_checkpointing_policy)},
  };
  const auto found = known.find(name);
  FSDP_CHECK(found != known.end(), "FSDP_IGNORE_OPTION: '", name, "' is not an option");
  found->second();
}

}  // namespace fsdp::internal

#endif
