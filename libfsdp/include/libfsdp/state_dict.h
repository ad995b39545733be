// SPDX-License-Identifier: Apache-2.0
// The forms of the state of a sharded module and its optimizers.  Names, meanings and defaults are
// those of torch.distributed.fsdp; keys are those of the unsharded module.
//
// PyTorch's configuration `use_dtensor` has no counterpart: there is one kind of sharded tensor
// here, and checkpoints written from it are read by both of PyTorch's.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "libfsdp/state_value.h"

namespace fsdp {

class ShardedModule;

enum class StateDictType {
  kFull,     // whole tensors
  kSharded,  // each parameter's rows on this rank, as a ShardedTensor; no communication
  // Each unit's flat buffer as it lies on this rank, as "<unit>._flat_param" (see
  // ShardedModule::named_parameters), with a text that describes its layout as
  // "<unit>._flat_param._layout".  Only for the same module, units and world size.
  kLocal,
};
// Returns PyTorch's name: "FULL_STATE_DICT", ...
const char* name_of(StateDictType type) noexcept;

struct StateDictConfig {
  bool offload_to_cpu = false;  // tensors of the state dict lie on the CPU
};
struct FullStateDictConfig : StateDictConfig {
  bool rank0_only = false;  // other ranks get an empty dict
};
struct ShardedStateDictConfig : StateDictConfig {};
struct LocalStateDictConfig : StateDictConfig {};

struct OptimStateDictConfig {
  bool offload_to_cpu = true;
};
struct FullOptimStateDictConfig : OptimStateDictConfig {
  bool rank0_only = false;
};
struct ShardedOptimStateDictConfig : OptimStateDictConfig {};
struct LocalOptimStateDictConfig : OptimStateDictConfig {
  LocalOptimStateDictConfig() { offload_to_cpu = false; }
};

using AnyStateDictConfig =
    std::variant<FullStateDictConfig, ShardedStateDictConfig, LocalStateDictConfig>;
using AnyOptimStateDictConfig =
    std::variant<FullOptimStateDictConfig, ShardedOptimStateDictConfig, LocalOptimStateDictConfig>;

// Both configurations are those of `state_dict_type`.
struct StateDictSettings {
  StateDictType state_dict_type = StateDictType::kFull;
  AnyStateDictConfig state_dict_config;
  AnyOptimStateDictConfig optim_state_dict_config;
};

// Sets the form that ShardedModule::state_dict, load_state_dict and the functions of
// optim_state_dict.h return and take from now on.  Configurations that are not given are the type's
// defaults.
// Returns: the previous settings.  Throws: c10::Error for a configuration of another type.
StateDictSettings set_state_dict_type(
    ShardedModule& module, StateDictType type,
    std::optional<AnyStateDictConfig> state_dict_config = std::nullopt,
    std::optional<AnyOptimStateDictConfig> optim_state_dict_config = std::nullopt);
const StateDictSettings& get_state_dict_type(const ShardedModule& module) noexcept;

// Sets the same while it lives.
class StateDictTypeScope {
 public:
  StateDictTypeScope(ShardedModule& module, StateDictType type,
                     std::optional<AnyStateDictConfig> state_dict_config = std::nullopt,
                     std::optional<AnyOptimStateDictConfig> optim_state_dict_config = std::nullopt);
  ~StateDictTypeScope();
  StateDictTypeScope(const StateDictTypeScope&) = delete;
  StateDictTypeScope& operator=(const StateDictTypeScope&) = delete;

 private:
  ShardedModule& module_;
  const StateDictSettings before_;
};

// Differences between a state dict and the target that it was loaded into.
struct LoadReport {
  std::vector<std::string> missing;     // in the module or optimizer, not in the state dict
  std::vector<std::string> unexpected;  // the other way around
  // "<key>: float32 -> bfloat16": read in one dtype and kept in another.
  std::vector<std::string> cast;

  bool same_keys() const noexcept { return missing.empty() && unexpected.empty(); }
};

}  // namespace fsdp
