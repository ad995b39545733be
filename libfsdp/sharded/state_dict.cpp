// SPDX-License-Identifier: Apache-2.0
// ShardedModule::state_dict, the form that it has, and load_state_dict.
#include "libfsdp/state_dict.h"

#include <algorithm>
#include <array>
#include <unordered_set>

#include <ATen/Functions.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include "libfsdp/agree.h"
#include "libfsdp/fully_sharded.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/left_out.h"
#include "libfsdp/internal/comm/own_work.h"
#include "libfsdp/internal/engine/engine.h"
#include "libfsdp/internal/state/load_problems.h"
#include "libfsdp/internal/state/state_entries.h"
#include "libfsdp/internal/units/gather_rows.h"

namespace fsdp {
using namespace internal;
namespace {

bool offloads(const AnyStateDictConfig& config) {
  return std::visit([](const StateDictConfig& any) { return any.offload_to_cpu; }, config);
}

at::Tensor placed(const at::Tensor& tensor, bool offload) {
  return offload ? tensor.cpu() : tensor;
}

StateDict full(const ShardedModule& model, const FullStateDictConfig& config) {
  const std::vector<Unit*> units = model.units();
  const bool kept = !config.rank0_only || is_first_rank(*units.front());
  StateDict result;
  // Creates the entries in the order of the module first; units then fill their own, one by one.
  for (const StateEntry& entry : state_entries(model)) {
    if (!kept) break;
    if (entry.parameter != nullptr) {
      result.set(entry.name, StateValue());
    } else {
      result.set(entry.name, placed(entry.whole.to(entry.built_dtype, /*non_blocking=*/false,
                                                   /*copy=*/true),
                                    config.offload_to_cpu));
    }
  }
  for (const Unit* unit : units) {
    for (const FlatGroup& group : unit->groups) {
      const at::Tensor blocks =
          gather_blocks(*unit, group.local, "all-gather of the state of '" + unit->name + "'");
      for (const Parameter* parameter : group.parameters) {
        if (!kept && parameter->placed.placements.empty()) continue;
        at::Tensor whole =
            gather_placed(*parameter, joined(blocks, parameter->layout, parameter->offset),
                          "all-gather of the state of '" + parameter->name() + "'");
        if (!kept) continue;
        whole = placed(whole, config.offload_to_cpu);
        for (const std::string& name : model.names_of(*parameter)) result.at(name) = whole;
      }
    }
  }
  return result;
}

StateDict sharded(const ShardedModule& model, bool offload) {
  StateDict result;
  for (const StateEntry& entry : state_entries(model)) {
    if (entry.parameter == nullptr) {
      result.set(entry.name, placed(entry.whole.to(entry.built_dtype), offload));
    } else {
      result.set(entry.name, sharded_tensor(*entry.parameter,
                                            placed(entry.parameter->shard.detach(), offload)));
    }
  }
  return result;
}

StateDict local(const ShardedModule& model, bool offload) {
  StateDict result;
  for (const StateEntry& entry : state_entries(model, /*flat=*/true)) {
    if (entry.flat == nullptr) {
      result.set(entry.name, placed(entry.whole, offload));
    } else {
      result.set(entry.name, placed(entry.flat->local.detach(), offload));
      result.set(layout_key(entry.name), layout_text(*entry.flat, model));
    }
  }
  return result;
}

// Maps a type to its alternative in both variants: they have the order of the enumeration.
std::size_t position(StateDictType type) {
  return static_cast<std::size_t>(type);
}

template <typename Config>
void check_config(const Config& config, StateDictType type, const char* what) {
  FSDP_CHECK(config.index() == position(type), "set_state_dict_type(", name_of(type), ") with ",
             what, " of ", name_of(static_cast<StateDictType>(config.index())),
             ": give the configuration of the type, or none");
}

struct Copy {
  at::Tensor target;
  at::Tensor source;
};

class Load {
 public:
  Load(const ShardedModule& model, const StateDict& state_dict)
      : model_(model), state_dict_(state_dict), entries_(state_entries(model, /*flat=*/true)) {
    const bool flat = std::any_of(entries_.begin(), entries_.end(), [&](const StateEntry& entry) {
      return entry.flat != nullptr && state_dict.find(entry.name) != nullptr;
    });
    if (!flat) entries_ = state_entries(model);
  }

  // Finds everything to copy, and everything that is wrong.
  LoadReport plan(bool strict) {
    std::unordered_set<std::string> used;
    for (const StateEntry& entry : entries_) {
      const StateValue* const value = state_dict_.find(entry.name);
      if (entry.flat != nullptr) used.insert(layout_key(entry.name));
      used.insert(entry.name);
      if (value == nullptr) {
        report_.missing.push_back(entry.name);
      } else {
        plan(entry, *value);
      }
    }
    for (const auto& [key, _] : state_dict_.entries()) {
      if (used.count(text_of(key)) == 0) report_.unexpected.push_back(text_of(key));
    }
    if (strict) problems_.add_keys(report_, "the module");
    problems_.check("the state dict does not fit the module");
    return std::move(report_);
  }

  void run() {
    for (const Copy& copy : copies_) {
      // Values that share memory with the module are already in place.
      if (!copy.source.is_same_size(copy.target) ||
          copy.source.const_data_ptr() != copy.target.const_data_ptr())
        copy.target.copy_(copy.source);
    }
    // Graphs that saved a parameter must notice that it changed.
    for (const Unit* unit : model_.units()) {
      for (const auto& parameter : unit->parameters) shard_was_written(*parameter);
    }
  }

 private:
  void plan(const StateEntry& entry, const StateValue& value) {
    if (entry.parameter != nullptr) {
      add(entry, entry.parameter->shard.detach(), entry.parameter->shard.scalar_type(),
          rows_in(value, entry.name, entry.parameter->layout,
                  entry.parameter->unit->sharding->rank(), problems_));
    } else if (entry.flat != nullptr) {
      if (same_layout(entry))
        add(entry, entry.flat->local, entry.flat->dtype,
            whole_in(value, entry.name, entry.flat->local.sizes(), problems_));
    } else {
      add(entry, entry.whole, entry.built_dtype,
          whole_in(value, entry.name, entry.whole.sizes(), problems_));
    }
  }

  bool same_layout(const StateEntry& entry) {
    const std::string problem =
        layout_problem(state_dict_.find(layout_key(entry.name)), *entry.flat, model_);
    if (problem.empty()) return true;
    problems_.add("'" + entry.name + "'" + problem +
                  ": a local state dict fits only the same module, units and number of ranks");
    return false;
  }

  void add(const StateEntry& entry, const at::Tensor& target, c10::ScalarType dtype,
           at::Tensor source) {
    if (!source.defined()) return;
    const c10::ScalarType found = source.scalar_type();
    if (!c10::canCast(found, dtype)) {
      problems_.add("'" + entry.name + "': expected " + name_of(dtype) + ", found " +
                    name_of(found) + ", which does not convert");
      return;
    }
    // A buffer that mixed precision cast may have its original dtype or its present one.
    if (found != dtype && found != target.scalar_type())
      report_.cast.push_back(entry.name + ": " + name_of(found) + " -> " + name_of(dtype));
    copies_.push_back({target, std::move(source)});
  }

  const ShardedModule& model_;
  const StateDict& state_dict_;
  std::vector<StateEntry> entries_;
  std::vector<Copy> copies_;
  LoadProblems problems_;
  LoadReport report_;
};

}  // namespace

StateDict ShardedModule::state_dict() const {
  const OutsideStep outside(engine_of(*this), "state_dict");
  const OwnWork own;
  const AnyStateDictConfig& config = state_dict_settings_.state_dict_config;
  switch (state_dict_settings_.state_dict_type) {
    case StateDictType::kFull:
      return full(*this, std::get<FullStateDictConfig>(config));
    case StateDictType::kSharded:
      return sharded(*this, offloads(config));
    case StateDictType::kLocal:
      return local(*this, offloads(config));
  }
  TORCH_INTERNAL_ASSERT(false);
}

LoadReport ShardedModule::load_state_dict(const StateDict& state_dict, bool strict) {
  const OwnWork own;
  std::optional<OutsideStep> outside;
  std::optional<Load> load;
  LoadReport report;
  agree(options().process_group, "load_state_dict", [&] {
    outside.emplace(engine_of(*this), "load_state_dict");
    load.emplace(*this, state_dict);
    report = load->plan(strict);
  });
  load->run();
  return report;
}

const char* name_of(StateDictType type) noexcept {
  constexpr const char* kNames[] = {"FULL_STATE_DICT", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT"};
  return kNames[position(type)];
}

StateDictSettings set_state_dict_type(
    ShardedModule& module, StateDictType type, std::optional<AnyStateDictConfig> state_dict_config,
    std::optional<AnyOptimStateDictConfig> optim_state_dict_config) {
  StateDictSettings settings;
  settings.state_dict_type = type;
  const std::array<AnyStateDictConfig, 3> configs{FullStateDictConfig(), ShardedStateDictConfig(),
                                                  LocalStateDictConfig()};
  const std::array<AnyOptimStateDictConfig, 3> optim_configs{
      FullOptimStateDictConfig(), ShardedOptimStateDictConfig(), LocalOptimStateDictConfig()};
  settings.state_dict_config = state_dict_config.value_or(configs[position(type)]);
  settings.optim_state_dict_config =
      optim_state_dict_config.value_or(optim_configs[position(type)]);
  check_config(settings.state_dict_config, type, "a state_dict_config");
  check_config(settings.optim_state_dict_config, type, "an optim_state_dict_config");
  leave_out_option(settings);
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
