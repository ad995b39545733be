// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/state/state_entries.h"

#include <sstream>
#include <unordered_map>

#include <c10/util/ArrayRef.h>
#include <torch/nn/module.h>

#include "libfsdp/fully_sharded.h"
#include "libfsdp/internal/engine/engine.h"

namespace fsdp::internal {

std::vector<StateEntry> state_entries(const ShardedModule& model, bool flat) {
  std::unordered_map<std::string, const Unit*> units;
  std::unordered_map<std::string, Parameter*> parameters;
  for (const Unit* unit : model.units()) {
    units.emplace(model.name_of(*unit), unit);
    for (const auto& parameter : unit->parameters) {
      for (const std::string& name : model.names_of(*parameter))
        parameters.emplace(name, parameter.get());
    }
  }
  std::vector<StateEntry> entries;
  const auto add_whole = [&](std::string name, const at::Tensor& tensor, c10::ScalarType built) {
    if (tensor.defined())
      entries.push_back({std::move(name), nullptr, nullptr, tensor.detach(), built});
  };
  for (const auto& module : model.module()->named_modules()) {
    const std::string& path = module.key();
    const std::string prefix = path.empty() ? "" : path + ".";
    const auto unit = flat ? units.find(path) : units.end();
    if (unit != units.end()) {
      for (const FlatGroup& group : unit->second->groups)
        entries.push_back({flat_name(path, *unit->second, group), nullptr, &group, {}, {}});
    }
    for (const auto& item : module.value()->named_parameters(/*recurse=*/false)) {
      const auto known = parameters.find(prefix + item.key());
      if (known == parameters.end())
        add_whole(prefix + item.key(), item.value(), item.value().scalar_type());
      else if (!flat)
        entries.push_back({known->first, known->second, nullptr, {}, {}});
    }
    for (const auto& item : module.value()->named_buffers(/*recurse=*/false)) {
      const auto built = model.buffer_dtypes().find(prefix + item.key());
      const bool known = built != model.buffer_dtypes().end();
      add_whole(prefix + item.key(), item.value(),
                known ? built->second : item.value().scalar_type());
    }
  }
  return entries;
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
