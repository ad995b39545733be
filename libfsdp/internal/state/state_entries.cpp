// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/state/state_entries.h"

#include <sstream>
#include <unordered_map>

#include <c10/util/ArrayRef.h>
#include <torch/nn/module.h>

#include "libfsdp/fully_sharded.h"
#include "libfsdp/internal/engine/engine.h"

namespace fsdp::internal {
namespace {

class Walk {
 public:
  Walk(const ShardedModule& model, bool flat) : model_(model), flat_(flat) {
    for (const Unit* unit : model.units()) {
      units_.emplace(model.name_of(*unit), unit);
      for (const auto& parameter : unit->parameters) {
        for (const std::string& name : model.names_of(*parameter))
          parameters_.emplace(name, parameter.get());
      }
    }
  }

  std::vector<StateEntry> run() {
    for (const auto& item : model_.module()->named_modules()) visit(item.key(), *item.value());
    return std::move(entries_);
  }

 private:
  void visit(const std::string& path, const torch::nn::Module& module) {
    const std::string prefix = path.empty() ? "" : path + ".";
    if (flat_) add_flat(path);
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      const auto known = parameters_.find(prefix + item.key());
      if (known == parameters_.end()) {
        add_whole(prefix + item.key(), item.value(), item.value().scalar_type());
      } else if (!flat_) {
        StateEntry& entry = entries_.emplace_back();
        entry.name = known->first;
        entry.parameter = known->second;
      }
    }
    for (const auto& item : module.named_buffers(/*recurse=*/false)) {
      const auto built = model_.buffer_dtypes().find(prefix + item.key());
      const bool known = built != model_.buffer_dtypes().end();
      add_whole(prefix + item.key(), item.value(),
                known ? built->second : item.value().scalar_type());
    }
  }

  void add_flat(const std::string& path) {
    const auto found = units_.find(path);
    if (found == units_.end()) return;
    for (const FlatGroup& group : found->second->groups) {
      StateEntry& entry = entries_.emplace_back();
      entry.name = flat_name(path, *found->second, group);
      entry.flat = &group;
      entry.flat_unit = found->second;
    }
  }

  void add_whole(std::string name, const at::Tensor& tensor, c10::ScalarType built_dtype) {
    if (!tensor.defined()) return;
    StateEntry& entry = entries_.emplace_back();
    entry.name = std::move(name);
    entry.whole = tensor.detach();
    entry.built_dtype = built_dtype;
  }

  const ShardedModule& model_;
  const bool flat_;
  std::unordered_map<std::string, const Unit*> units_;
  std::unordered_map<std::string, Parameter*> parameters_;
  std::vector<StateEntry> entries_;
};

}  // namespace

std::vector<StateEntry> state_entries(const ShardedModule& model, bool flat) {
  return Walk(model, flat).run();
}

std::string layout_text(const FlatGroup& group, const ShardedModule& model) {
  std::ostringstream text;
  const char* separator = ": ";
  for (const Parameter* parameter : group.parameters) {
    if (parameter == group.parameters.front())
      text << "rank " << group.sharding->rank() << " of " << parameter->layout.world_size;
    const ShardLayout& layout = parameter->layout;
    text << separator << model.names_of(*parameter).front() << ' ' << at::IntArrayRef(layout.shape);
    // Rows over other numbers of dimensions may give the same offsets.
    if (layout.row_dims > 1) text << " in rows of " << layout.row_numel;
    text << " at " << parameter->offset;
    separator = ", ";
  }
  return text.str();
}

std::string layout_problem(const StateValue* found, const FlatGroup& group,
                           const ShardedModule& model) {
  const std::string expected = layout_text(group, model);
  const std::string* const text = found == nullptr ? nullptr : found->as_string();
  if (text != nullptr && *text == expected) return {};
  return ": expected the layout '" + expected + "', found " +
         (text == nullptr ? "none" : "'" + *text + "'");
}

std::string layout_key(const std::string& flat_name) {
  return flat_name + "._layout";
}

}  // namespace fsdp::internal
