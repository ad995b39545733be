// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/strategy.h"

#include <unordered_set>

#include <torch/optim/optimizer.h>

#include "libfsdp/checkpoint.h"
#include "libfsdp/internal/checkpoint/trainer_entries.h"
#include "libfsdp/internal/comm/backend_registry.h"
#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/comm/devices.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/left_out.h"
#include "libfsdp/internal/state/state_skeleton.h"
#include "libfsdp/internal/units/sharding.h"
#include "libfsdp/optim_state_dict.h"

namespace fsdp {
using namespace internal;
namespace {

StrategyOptions checked(StrategyOptions options) {
  leave_out_option(options);
  FSDP_CHECK(!options.fsdp.process_group && !options.fsdp.replicate_group,
             "the strategy makes the process group: leave FsdpOptions::process_group and "
             "replicate_group out");
  FSDP_CHECK(!options.fsdp.device_id,
             "the strategy gives each rank its device: name them in parallel_devices");
  FSDP_CHECK(options.state_dict_type != StateDictType::kLocal, "state_dict_type is ",
             name_of(options.state_dict_type),
             "; expected FULL_STATE_DICT (one file) or SHARDED_STATE_DICT (a folder)");
  if (options.device_mesh) {
    FSDP_CHECK(is_hybrid(options.fsdp.sharding_strategy), "device_mesh is for HYBRID_SHARD, found ",
               name_of(options.fsdp.sharding_strategy));
    FSDP_CHECK(options.device_mesh->first > 0 && options.device_mesh->second > 0,
               "device_mesh is (", options.device_mesh->first, ", ", options.device_mesh->second,
               "); expected (copies, ranks of a copy), both above 0");
  }
  return options;
}

// Returns a scope in which state dicts have the form that the strategy saves.
StateDictTypeScope saved_form(ShardedModule& module, const StrategyOptions& options) {
  const bool to_cpu = options.state_dict_to_cpu;
  if (options.state_dict_type == StateDictType::kSharded)
    return StateDictTypeScope(module, StateDictType::kSharded, ShardedStateDictConfig{{to_cpu}},
                              ShardedOptimStateDictConfig{{to_cpu}});
  return StateDictTypeScope(module, StateDictType::kFull, FullStateDictConfig{{to_cpu}, true},
                            FullOptimStateDictConfig{{to_cpu}, true});
}

void check_place_among(const std::vector<c10::Device>& devices, int local_rank) {
  FSDP_CHECK(
      devices.empty() || (local_rank >= 0 && static_cast<std::size_t>(local_rank) < devices.size()),
      "parallel_devices names ", devices.size(), " devices; this is rank ", local_rank,
      " of its node, counted from 0");
}

// Returns the local rank of this process, which is the place of its device in `devices`.
std::size_t place_among(const std::vector<c10::Device>& devices, const ProcessGroupOptions& group) {
  std::optional<int> local_rank = group.local_rank;
  if (!local_rank && !group.rank) {
    const auto environment = rank_environment();
    if (environment && environment->local_known) local_rank = environment->local_rank;
  }
  // init_process_group() counts ranks host by host, but the device is needed before.
  if (!local_rank && (devices.size() == 1 || group.world_size == 1)) local_rank = 0;
  FSDP_CHECK(local_rank, "parallel_devices names ", devices.size(),
             " devices, but this rank's place on its node is not known (ranks may be on several "
             "nodes); set cluster_environment.local_rank");
  check_place_among(devices, *local_rank);
  return static_cast<std::size_t>(*local_rank);
}

}  // namespace

StrategyOptions strategy_options(std::string_view name) {
  FSDP_CHECK(name == "fsdp" || name == "fsdp_cpu_offload",
             "expected the strategy fsdp or fsdp_cpu_offload, found '", name, "'");
  StrategyOptions options;
  options.fsdp.cpu_offload.offload_params = name == "fsdp_cpu_offload";
  return options;
}

StrategyBase::StrategyBase(StrategyOptions options) : options_(checked(std::move(options))) {}
StrategyBase::~StrategyBase() = default;

void StrategyBase::setup_environment() {
  FSDP_CHECK(!group_, "setup_environment() was called before");
  ProcessGroupOptions group = options_.cluster_environment;
  group.timeout = options_.timeout;
  const auto& devices = options_.parallel_devices;
  const c10::DeviceType type = devices.empty() ? c10::DeviceType::CPU : devices.front().type();
  group.backend = options_.process_group_backend.value_or(default_backend(type));
  if (!devices.empty()) group.device_id = devices[place_among(devices, group)];
  const auto joined = init_process_group(group);
  check_place_among(devices, joined->local_rank());
  group_ = joined;
  if (options_.device_mesh) {
    const auto [copies, sharing] = *options_.device_mesh;
    FSDP_CHECK(copies * sharing == group_->size(), "device_mesh is (", copies, ", ", sharing,
               "), for ", copies * sharing, " ranks; there are ", group_->size());
  }
}

void StrategyBase::teardown() {
  if (group_) barrier("teardown");
  optimizers_.clear();
  drop_module();
  group_.reset();
}

const std::shared_ptr<ProcessGroup>& StrategyBase::process_group() const {
  FSDP_CHECK(group_, "there is no process group yet; call setup_environment() first");
  return group_;
}

FsdpOptions StrategyBase::wrap_options(const torch::nn::Module& module) {
  FsdpOptions result = options_.fsdp;
  result.process_group = process_group();
  if (options_.device_mesh) result.node_size = options_.device_mesh->second;
  if (!is_host(root_device())) result.device_id = root_device();
  if (!unit_names(module, wrapped_policy()).empty()) {
    if (result.auto_wrap_policy) {
      TORCH_WARN("modules were marked by wrap(): auto_wrap_policy is ignored");
    }
    result.auto_wrap_policy = wrapped_policy();
  }
  return result;
}

void StrategyBase::setup_optimizers(const ConfigureOptimizers& configure) {
  require_setup();
  Optimizers made = configure(sharded()->parameters());
  std::unordered_set<const c10::TensorImpl*> known;
  for (const at::Tensor& parameter : sharded()->parameters())
    known.insert(parameter.unsafeGetTensorImpl());
  for (std::size_t i = 0; i < made.size(); ++i) {
    FSDP_CHECK(made[i], "optimizer ", i, " is a null pointer");
    for (const auto& group : made[i]->param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        FSDP_CHECK(known.count(parameter.unsafeGetTensorImpl()) != 0, "optimizer ", i,
                   " holds a tensor ", parameter.sizes(),
                   " that is not a parameter of the sharded module; make it from the "
                   "parameters it is given, not from the module's own");
      }
    }
  }
  optimizers_ = std::move(made);
}

void StrategyBase::barrier(const std::string& name) const {
  fsdp::barrier(process_group(), name);
}

StateValue StrategyBase::broadcast(const StateValue& value, int src) const {
  return broadcast_value(process_group(), value, src, "broadcast of a value");
}

std::string StrategyBase::broadcast(const std::string& text, int src) const {
  return *broadcast(StateValue(text), src).as_string();
}

at::Tensor StrategyBase::broadcast(const at::Tensor& tensor, int src) const {
  const StateValue result = broadcast(StateValue(tensor), src);
  return result.as_tensor()->to(tensor.device());
}

at::Tensor StrategyBase::reduce(const at::Tensor& tensor,
                                const std::shared_ptr<ProcessGroup>& group, ReduceKind kind) const {
  return fsdp::reduce(tensor, group ? group : process_group(), kind);
}

void StrategyBase::require_setup() const {
  FSDP_CHECK(sharded() != nullptr, "there is no module yet; call setup(module) first");
}

StateDict StrategyBase::lightning_module_state_dict() const {
  require_setup();
  const StateDictTypeScope scope = saved_form(*sharded(), options_);
  return sharded()->state_dict();
}

StateDict StrategyBase::optimizer_state(const torch::optim::Optimizer& optimizer) const {
  require_setup();
  const StateDictTypeScope scope = saved_form(*sharded(), options_);
  StateDict state = optim_state_dict(*sharded(), optimizer);
  if (options_.state_dict_type == StateDictType::kSharded || state.empty()) return state;
  return rekey_optim_state_dict(state, OptimStateKeyType::kParamId, *sharded()->module());
}

StateDict StrategyBase::dump_checkpoint(const StateDict& extra) const {
  StateDict result = extra;
  add_lightning_meta(result);
  result.set("state_dict", lightning_module_state_dict());
  StateList states;
  for (const auto& optimizer : optimizers_) states.emplace_back(optimizer_state(*optimizer));
  result.set("optimizer_states", std::move(states));
  return result;
}

void StrategyBase::save_checkpoint(const StateDict& checkpoint, const std::filesystem::path& path,
                                   const std::optional<StateDict>& storage_options) const {
  FSDP_CHECK(!storage_options,
             "save_checkpoint(..., storage_options=...) is not supported: the strategy writes "
             "checkpoints itself, not by a CheckpointIO; leave storage_options out");
  const auto destination = broadcast(path);
  SaveOptions options;
  options.overwrite = true;
  if (options_.state_dict_type == StateDictType::kFull)
    return save_file(destination, checkpoint, process_group(), options);
  StateDict rest = checkpoint;
  StateDict parts{{"model", checkpoint.at("state_dict")}};
  if (const StateValue* const states = checkpoint.find("optimizer_states")) {
    FSDP_CHECK(states->as_list() != nullptr, "'optimizer_states' is a ", states->kind_name(),
               "; expected a list of the optimizers' states");
    for (std::size_t i = 0; i < states->as_list()->size(); ++i)
      parts.set("optimizer_" + std::to_string(i), (*states->as_list())[i]);
  }
  rest.erase("state_dict");
  rest.erase("optimizer_states");
  add_lightning_meta(rest);
  save_with_meta(destination, parts, rest, process_group(), options);
}

StateDict StrategyBase::load_checkpoint(const std::filesystem::path& path, bool strict) {
  require_setup();
  TrainingState state;
  state.model = sharded();
  state.group = process_group();
  for (const auto& optimizer : optimizers_) state.optimizers.push_back(optimizer.get());
  TrainingLoadOptions options;
  options.strict = strict;
  options.optimizers = !optimizers_.empty();
  load(broadcast(path), state, options);
  return std::move(state.extra);
}

}  // namespace fsdp
