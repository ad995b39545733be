// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>

#include "libfsdp/fully_sharded.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/construction/left_out_option.h"
#include "libfsdp/state_dict.h"

namespace fsdp {
namespace {

// Maps a type to its alternative in both variants: they have the order of the enumeration.
std::size_t position(StateDictType type) {
  return static_cast<std::size_t>(type);
}

AnyStateDictConfig default_config(StateDictType type) {
  if (type == StateDictType::kFull) return FullStateDictConfig();
  if (type == StateDictType::kSharded) return ShardedStateDictConfig();
  return LocalStateDictConfig();
}

AnyOptimStateDictConfig default_optim_config(StateDictType type) {
  if (type == StateDictType::kFull) return FullOptimStateDictConfig();
  if (type == StateDictType::kSharded) return ShardedOptimStateDictConfig();
  return LocalOptimStateDictConfig();
}

template <typename Config>
void check(const Config& config, StateDictType type, const char* what) {
  FSDP_CHECK(config.index() == position(type), "set_state_dict_type(", name_of(type), ") with ",
             what, " of ", name_of(static_cast<StateDictType>(config.index())),
             ": give the configuration of the type, or none");
}

}  // namespace

const char* name_of(StateDictType type) noexcept {
  constexpr const char* kNames[] = {"FULL_STATE_DICT", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT"};
  return kNames[position(type)];
}

StateDictSettings set_state_dict_type(
    ShardedModule& module, StateDictType type, std::optional<AnyStateDictConfig> state_dict_config,
    std::optional<AnyOptimStateDictConfig> optim_state_dict_config) {
  StateDictSettings settings;
  settings.state_dict_type = type;
  settings.state_dict_config = state_dict_config ? *state_dict_config : default_config(type);
  settings.optim_state_dict_config =
      optim_state_dict_config ? *optim_state_dict_config : default_optim_config(type);
  check(settings.state_dict_config, type, "a state_dict_config");
  check(settings.optim_state_dict_config, type, "an optim_state_dict_config");
  internal::leave_out_option(settings);
  return std::exchange(module.state_dict_settings_, settings);
}

const StateDictSettings& get_state_dict_type(const ShardedModule& module) noexcept {
  return module.state_dict_settings();
}

StateDictTypeScope::StateDictTypeScope(
    ShardedModule& module, StateDictType type, std::optional<AnyStateDictConfig> state_dict_config,
    std::optional<AnyOptimStateDictConfig> optim_state_dict_config)
    : module_(module),
      before_(set_state_dict_type(module, type, state_dict_config, optim_state_dict_config)) {}

StateDictTypeScope::~StateDictTypeScope() {
  set_state_dict_type(module_, before_.state_dict_type, before_.state_dict_config,
                      before_.optim_state_dict_config);
}

}  // namespace fsdp
