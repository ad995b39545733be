// SPDX-License-Identifier: Apache-2.0
// ShardedModule::load_state_dict.
#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include "libfsdp/agree.h"
#include "libfsdp/fully_sharded.h"
#include "libfsdp/internal/engine/engine.h"
#include "libfsdp/internal/engine/outside_step.h"
#include "libfsdp/internal/state/load_problems.h"
#include "libfsdp/internal/state/state_entries.h"
#include "libfsdp/internal/units/own_work.h"

namespace fsdp {
using namespace internal;
namespace {

struct Copy {
  at::Tensor target;
  at::Tensor source;
};

class Load {
 public:
  Load(const ShardedModule& model, const StateDict& state_dict)
      : model_(model), state_dict_(state_dict), entries_(flat_state_entries(model)) {
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
    const std::string expected = layout_text(*entry.flat, model_);
    const StateValue* const found = state_dict_.find(layout_key(entry.name));
    const std::string* const text = found == nullptr ? nullptr : found->as_string();
    if (text != nullptr && *text == expected) return true;
    problems_.add("'" + entry.name + "': expected the layout '" + expected + "', found " +
                  (text == nullptr ? std::string("none") : "'" + *text + "'") +
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

LoadReport ShardedModule::load_state_dict(const StateDict& state_dict, bool strict) {
  const OwnWork own;
  std::optional<OutsideStep> outside;
  std::optional<Load> load;
  LoadReport report;
  agree(options().process_group, "load_state_dict", [&] {
    outside.emplace(engine(), "load_state_dict");
    load.emplace(*this, state_dict);
    report = load->plan(strict);
  });
  load->run();
  return report;
}

}  // namespace fsdp
