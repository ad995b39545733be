// SPDX-License-Identifier: Apache-2.0
// Ignores the option that the environment's FSDP_IGNORE_OPTION names, "SummonOptions::recurse".
#include <cstdlib>
#include <string>
#include <variant>

#include "libfsdp/checkpoint.h"
#include "libfsdp/fairscale_options.h"
#include "libfsdp/fully_shard.h"
#include "libfsdp/fully_sharded.h"
#include "libfsdp/internal/comm/left_out.h"
#include "libfsdp/options.h"
#include "libfsdp/process_group.h"
#include "libfsdp/state_dict.h"
#include "libfsdp/strategy.h"

namespace fsdp::internal {
namespace {

template <typename T>
void leave(const char* option, T& member, const T& by) {
  static const char* const name = std::getenv("FSDP_IGNORE_OPTION");
  if (name != nullptr && std::string(name) == option) member = by;
}

void reset(FsdpOptions& options) {
  const FsdpOptions defaults;
  leave("FsdpOptions::replicate_group", options.replicate_group, defaults.replicate_group);
  leave("FsdpOptions::device_mesh", options.device_mesh, defaults.device_mesh);
  leave("FsdpOptions::node_size", options.node_size, defaults.node_size);
  leave("FsdpOptions::sharding_strategy", options.sharding_strategy, defaults.sharding_strategy);
  leave("FsdpOptions::cpu_offload", options.cpu_offload, defaults.cpu_offload);
  leave("FsdpOptions::auto_wrap_policy", options.auto_wrap_policy, defaults.auto_wrap_policy);
  leave("FsdpOptions::backward_prefetch", options.backward_prefetch, defaults.backward_prefetch);
  leave("FsdpOptions::ignored_modules", options.ignored_modules, defaults.ignored_modules);
  leave("FsdpOptions::ignored_states", options.ignored_states, defaults.ignored_states);
  leave("FsdpOptions::param_init_fn", options.param_init_fn, defaults.param_init_fn);
  leave("FsdpOptions::device_id", options.device_id, defaults.device_id);
  leave("FsdpOptions::sync_module_states", options.sync_module_states, defaults.sync_module_states);
  leave("FsdpOptions::forward_prefetch", options.forward_prefetch, defaults.forward_prefetch);
  leave("FsdpOptions::limit_all_gathers", options.limit_all_gathers, defaults.limit_all_gathers);
  leave("FsdpOptions::use_orig_params", options.use_orig_params, defaults.use_orig_params);
  leave("FsdpOptions::bucket_bytes", options.bucket_bytes, defaults.bucket_bytes);
  leave("FsdpOptions::activation_checkpointing_policy", options.activation_checkpointing_policy,
        defaults.activation_checkpointing_policy);
  MixedPrecision& precision = options.mixed_precision;
  const MixedPrecision none;
  leave("MixedPrecision::param_dtype", precision.param_dtype, none.param_dtype);
  leave("MixedPrecision::reduce_dtype", precision.reduce_dtype, none.reduce_dtype);
  leave("MixedPrecision::buffer_dtype", precision.buffer_dtype, none.buffer_dtype);
  leave("MixedPrecision::keep_low_precision_grads", precision.keep_low_precision_grads,
        none.keep_low_precision_grads);
  leave("MixedPrecision::cast_forward_inputs", precision.cast_forward_inputs,
        none.cast_forward_inputs);
  leave("MixedPrecision::cast_root_forward_inputs", precision.cast_root_forward_inputs,
        none.cast_root_forward_inputs);
  leave("MixedPrecision::module_classes_to_ignore", precision.module_classes_to_ignore,
        none.module_classes_to_ignore);
}

void reset(FullyShardOptions& options) {
  const FullyShardOptions defaults;
  leave("FullyShardOptions::replicate_group", options.replicate_group, defaults.replicate_group);
  leave("FullyShardOptions::mesh", options.mesh, defaults.mesh);
  leave("FullyShardOptions::node_size", options.node_size, defaults.node_size);
  leave("FullyShardOptions::sharding_strategy", options.sharding_strategy,
        defaults.sharding_strategy);
  leave("FullyShardOptions::reshard_after_forward", options.reshard_after_forward,
        defaults.reshard_after_forward);
  leave("FullyShardOptions::offload_policy", options.offload_policy, defaults.offload_policy);
  leave("FullyShardOptions::ignored_params", options.ignored_params, defaults.ignored_params);
  leave("FullyShardOptions::param_init_fn", options.param_init_fn, defaults.param_init_fn);
  leave("FullyShardOptions::device_id", options.device_id, defaults.device_id);
  leave("FullyShardOptions::sync_module_states", options.sync_module_states,
        defaults.sync_module_states);
  leave("FullyShardOptions::backward_prefetch", options.backward_prefetch,
        defaults.backward_prefetch);
  leave("FullyShardOptions::forward_prefetch", options.forward_prefetch, defaults.forward_prefetch);
  leave("FullyShardOptions::limit_all_gathers", options.limit_all_gathers,
        defaults.limit_all_gathers);
  leave("FullyShardOptions::bucket_bytes", options.bucket_bytes, defaults.bucket_bytes);
  MixedPrecisionPolicy& policy = options.mp_policy;
  const MixedPrecisionPolicy none;
  leave("MixedPrecisionPolicy::param_dtype", policy.param_dtype, none.param_dtype);
  leave("MixedPrecisionPolicy::reduce_dtype", policy.reduce_dtype, none.reduce_dtype);
  leave("MixedPrecisionPolicy::output_dtype", policy.output_dtype, none.output_dtype);
  leave("MixedPrecisionPolicy::cast_forward_inputs", policy.cast_forward_inputs,
        none.cast_forward_inputs);
}

void reset(SummonOptions& options) {
  const SummonOptions defaults;
  leave("SummonOptions::recurse", options.recurse, defaults.recurse);
  leave("SummonOptions::writeback", options.writeback, defaults.writeback);
  leave("SummonOptions::rank0_only", options.rank0_only, defaults.rank0_only);
  leave("SummonOptions::offload_to_cpu", options.offload_to_cpu, defaults.offload_to_cpu);
  leave("SummonOptions::with_grads", options.with_grads, defaults.with_grads);
}

void reset(StateDictSettings& settings) {
  std::visit(
      [](StateDictConfig& config) {
        leave("StateDictConfig::offload_to_cpu", config.offload_to_cpu, false);
      },
      settings.state_dict_config);
  if (auto* const full = std::get_if<FullStateDictConfig>(&settings.state_dict_config))
    leave("FullStateDictConfig::rank0_only", full->rank0_only, false);
  std::visit(
      [](OptimStateDictConfig& config) {
        leave("OptimStateDictConfig::offload_to_cpu", config.offload_to_cpu, true);
      },
      settings.optim_state_dict_config);
  if (auto* const full = std::get_if<FullOptimStateDictConfig>(&settings.optim_state_dict_config))
    leave("FullOptimStateDictConfig::rank0_only", full->rank0_only, false);
}

void reset(StrategyOptions& options) {
  const StrategyOptions defaults;
  leave("StrategyOptions::process_group_backend", options.process_group_backend,
        defaults.process_group_backend);
  leave("StrategyOptions::timeout", options.timeout, defaults.timeout);
  leave("StrategyOptions::parallel_devices", options.parallel_devices, defaults.parallel_devices);
  leave("StrategyOptions::device_mesh", options.device_mesh, defaults.device_mesh);
  leave("StrategyOptions::state_dict_type", options.state_dict_type, defaults.state_dict_type);
  leave("StrategyOptions::state_dict_to_cpu", options.state_dict_to_cpu,
        defaults.state_dict_to_cpu);
}

void reset(DDPFullyShardedOptions& options) {
  const DDPFullyShardedOptions defaults;
  leave("DDPFullyShardedOptions::cpu_offload", options.cpu_offload, defaults.cpu_offload);
  leave("DDPFullyShardedOptions::flatten_parameters", options.flatten_parameters,
        defaults.flatten_parameters);
  leave("DDPFullyShardedOptions::reshard_after_forward", options.reshard_after_forward,
        defaults.reshard_after_forward);
  leave("DDPFullyShardedOptions::move_grads_to_cpu", options.move_grads_to_cpu,
        defaults.move_grads_to_cpu);
  leave("DDPFullyShardedOptions::fp32_reduce_scatter", options.fp32_reduce_scatter,
        defaults.fp32_reduce_scatter);
  leave("DDPFullyShardedOptions::compute_dtype", options.compute_dtype, defaults.compute_dtype);
  leave("DDPFullyShardedOptions::bucket_cap_mb", options.bucket_cap_mb, defaults.bucket_cap_mb);
  leave("DDPFullyShardedOptions::min_num_params", options.min_num_params, defaults.min_num_params);
  leave("DDPFullyShardedOptions::state_dict_to_cpu", options.state_dict_to_cpu,
        defaults.state_dict_to_cpu);
}

void reset(SaveOptions& options) {
  const SaveOptions defaults;
  leave("SaveOptions::overwrite", options.overwrite, defaults.overwrite);
  leave("SaveOptions::sync", options.sync, defaults.sync);
  leave("SaveOptions::page_cache", options.page_cache, defaults.page_cache);
  leave("SaveOptions::seal", options.seal, defaults.seal);
}

void reset(LoadOptions& options) {
  const LoadOptions defaults;
  leave("LoadOptions::strict", options.strict, defaults.strict);
  leave("LoadOptions::cast", options.cast, defaults.cast);
  leave("LoadOptions::verify", options.verify, defaults.verify);
  leave("LoadOptions::allowed_globals", options.allowed_globals, defaults.allowed_globals);
}

void reset(TrainingLoadOptions& options) {
  reset(static_cast<LoadOptions&>(options));
  const TrainingLoadOptions defaults;
  leave("TrainingLoadOptions::optimizers", options.optimizers, defaults.optimizers);
  leave("TrainingLoadOptions::extra", options.extra, defaults.extra);
}

void reset(ProcessGroupOptions& options) {
  const ProcessGroupOptions defaults;
  leave("ProcessGroupOptions::backend", options.backend, defaults.backend);
  leave("ProcessGroupOptions::device_id", options.device_id, defaults.device_id);
  leave("ProcessGroupOptions::timeout", options.timeout, defaults.timeout);
  leave("ProcessGroupOptions::warn_after", options.warn_after, defaults.warn_after);
  leave("ProcessGroupOptions::direct_copies", options.direct_copies, defaults.direct_copies);
  leave("ProcessGroupOptions::rank", options.rank, defaults.rank);
  leave("ProcessGroupOptions::world_size", options.world_size, defaults.world_size);
  leave("ProcessGroupOptions::local_rank", options.local_rank, defaults.local_rank);
  leave("ProcessGroupOptions::master_addr", options.master_addr, defaults.master_addr);
  leave("ProcessGroupOptions::master_port", options.master_port, defaults.master_port);
  leave("ProcessGroupOptions::store", options.store, defaults.store);
  leave("ProcessGroupOptions::nccl", options.nccl, defaults.nccl);
  leave("ProcessGroupOptions::flight_record_prefix", options.flight_record_prefix,
        defaults.flight_record_prefix);
}

}  // namespace

template <typename Options>
void leave_out_option(Options& options) {
  reset(options);
}
template void leave_out_option(FsdpOptions&);
template void leave_out_option(FullyShardOptions&);
template void leave_out_option(SummonOptions&);
template void leave_out_option(StateDictSettings&);
template void leave_out_option(StrategyOptions&);
template void leave_out_option(DDPFullyShardedOptions&);
template void leave_out_option(SaveOptions&);
template void leave_out_option(LoadOptions&);
template void leave_out_option(TrainingLoadOptions&);
template void leave_out_option(ProcessGroupOptions&);

}  // namespace fsdp::internal
