// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/units/module_units.h"

#include <algorithm>
#include <cstdint>
#include <sstream>

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>

#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/units/freezing.h"

namespace fsdp::internal {
namespace {

bool is_batch_norm(const torch::nn::Module& module) {
  return dynamic_cast<const torch::nn::BatchNorm1dImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::BatchNorm2dImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::BatchNorm3dImpl*>(&module) != nullptr;
}

using Units = std::vector<std::unique_ptr<Unit>>;
using UnitOfModule = std::unordered_map<const torch::nn::Module*, Unit*>;

Unit& add_unit(Units& units, UnitOfModule& of_module, const torch::nn::Module& module,
               const std::string& name) {
  auto unit = std::make_unique<Unit>();
  unit->name = name;
  unit->module = &module;
  of_module.emplace(&module, unit.get());
  return *units.emplace_back(std::move(unit));
}

// Returns units still without parameters.  A module registered in several places is one unit.
// `apart`: modules that contain no units.
Units empty_units(const torch::nn::Module& module, const FsdpOptions& options,
                  const std::vector<const torch::nn::Module*>& apart, UnitOfModule& of_module) {
  Units units;
  add_unit(units, of_module, module, "");
  if (!options.auto_wrap_policy) return units;
  std::vector<std::string> chosen =
      unit_names(module, options.auto_wrap_policy, apart, options.ignored_states.parameters());
  for (const auto& child : module.named_modules("", /*include_self=*/false)) {
    const bool is_ignored =
        std::find(apart.begin(), apart.end(), child.value().get()) != apart.end();
    if (is_ignored || of_module.count(child.value().get()) != 0) continue;
    const bool full_precision = keeps_precision(*child.value(), options);
    if (full_precision || std::find(chosen.begin(), chosen.end(), child.key()) != chosen.end())
      add_unit(units, of_module, *child.value(), child.key()).mixed_precision = !full_precision;
  }
  return units;
}

// Returns `path` without its last component; "" is the root.
std::string parent_path(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

using ModuleOfPath = std::unordered_map<std::string, const torch::nn::Module*>;

ModuleOfPath modules_of(const torch::nn::Module& root) {
  ModuleOfPath result{{"", &root}};
  for (const auto& child : root.named_modules("", /*include_self=*/false))
    result.emplace(child.key(), child.value().get());
  return result;
}

// Gives the units the names that they have in the module around them, and adds them.
void add_inner(Units& units, UnitOfModule& of_module, InnerUnits& inner) {
  const auto renamed = [&](const std::string& name) {
    return name.empty() ? inner.path : inner.path + "." + name;
  };
  for (auto& unit : inner.units) {
    of_module.emplace(unit->module, unit.get());
    unit->name = renamed(unit->name);
    for (const auto& parameter : unit->parameters) {
      for (std::string& name : parameter->names) name = renamed(name);
    }
    units.push_back(std::move(unit));
  }
}

// Sorts units in the order of their modules in the tree.
void sort_units(Units& units, const torch::nn::Module& module) {
  std::unordered_map<std::string, std::size_t> places{{"", 0}};
  for (const auto& item : module.named_modules("", /*include_self=*/false))
    places.emplace(item.key(), places.size());
  std::stable_sort(units.begin(), units.end(), [&](const auto& a, const auto& b) {
    return places.at(a->name) < places.at(b->name);
  });
}

void check_mesh(const std::string& name, const PlacedParameter& parameter,
                const Sharding& sharding) {
  const auto& own = sharding.device_mesh;
  FSDP_CHECK(!sharding.flat, "parameter '", name,
             "' is a part of a larger one, which a flat parameter cannot hold: set "
             "use_orig_params");
  for (const Placement& placement : parameter.placements) {
    const DeviceMesh& mesh = placement.mesh;
    FSDP_CHECK(own, "parameter '", name, "' is a part along '", mesh.name(0),
               "' of a mesh: give the dimension over which its module is sharded (mesh, "
               "device_mesh) instead of groups");
    FSDP_CHECK(own->is_part_of_same(mesh), "parameter '", name, "' is a part along '", mesh.name(0),
               "' of the mesh (", mesh.root().text(), "), but its module is sharded over (",
               own->text(), ") of another mesh, (", own->root().text(),
               "): shard the module that has it by a fully_shard() of its own, over a dimension "
               "of its mesh");
    for (std::size_t dim = 0; dim < own->ndim(); ++dim) {
      FSDP_CHECK(own->name(dim) != mesh.name(0), "parameter '", name,
                 "' is a part along dimension '", mesh.name(0),
                 "' of the mesh, over which its module is sharded, too");
    }
  }
}

// Returns the shape of the whole and the placements of a parameter that may be a part of a larger
// one, after comparing them with the module's tensor.
PlacedParameter placed_of(const std::string& name, const at::Tensor& tensor,
                          const ModuleOfPath& modules, const Sharding& sharding) {
  PlacedParameter result;
  const std::string path = parent_path(name);
  const auto module = modules.find(path);
  const auto* const placed =
      module == modules.end() ? nullptr : dynamic_cast<const PlacedModule*>(module->second);
  if (placed != nullptr)
    result = placed->placed(path.empty() ? name : name.substr(path.size() + 1));
  if (result.placements.empty()) return {tensor.sizes().vec(), {}};
  const ShardLayout layout = layout_of(result);
  FSDP_CHECK(tensor.sizes() == at::IntArrayRef(layout.shape), "parameter '", name, "' is ",
             tensor.sizes(), ", but this rank's part of ", at::IntArrayRef(result.shape), " is ",
             at::IntArrayRef(layout.shape));
  check_mesh(name, result, sharding);
  return result;
}

void check_parameter(const std::string& name, const at::Tensor& tensor) {
  FSDP_CHECK(parameter_of(tensor) == nullptr, "parameter '", name,
             "' is sharded already: it lies in a module that was wrapped before, alone or inside "
             "another; wrap the outermost module once, and say by auto_wrap_policy (or wrap()) "
             "which modules in it are units");
  FSDP_CHECK(!was_let_go(tensor), "parameter '", name,
             "' belonged to a sharded module that has been destroyed, and its values with it: "
             "build a new module");
  FSDP_CHECK(tensor.layout() == at::kStrided, "parameter '", name, "' is ", tensor.layout(),
             ", but only dense parameters can be sharded; ignore it with ignored_states");
  FSDP_CHECK(tensor.is_floating_point() || tensor.is_complex(), "parameter '", name, "' is ",
             tensor.scalar_type(),
             ", but only floating-point and complex parameters can be "
             "sharded; make it a buffer, or ignore it with ignored_states");
  FSDP_CHECK(tensor.is_leaf(), "parameter '", name,
             "' is the result of an operator; register a "
             "leaf tensor (detach() it first)");
}

void group_by_dtype(Unit& unit, const FsdpOptions& options) {
  for (const auto& parameter : unit.parameters) {
    const c10::ScalarType dtype = parameter->full.scalar_type();
    auto found = std::find_if(unit.groups.begin(), unit.groups.end(),
                              [&](const FlatGroup& group) { return group.dtype == dtype; });
    if (found == unit.groups.end()) {
      FlatGroup group;
      group.sharding = unit.sharding.get();
      group.dtype = group.compute_dtype = group.reduce_dtype = dtype;
      if (unit.mixed_precision && c10::isFloatingType(dtype)) {
        const MixedPrecision& precision = options.mixed_precision;
        group.compute_dtype = precision.param_dtype.value_or(dtype);
        group.reduce_dtype = precision.reduce_dtype.value_or(group.compute_dtype);
      }
      found = unit.groups.insert(unit.groups.end(), std::move(group));
    }
    parameter->group = static_cast<std::size_t>(found - unit.groups.begin());
    found->parameters.push_back(parameter.get());
  }
}

// Drops units without parameters, except the root; their children move to the units around them.
void drop_empty(Units& units) {
  const auto empty = [](const Unit& unit) {
    return unit.parameters.empty() && unit.parent != nullptr;
  };
  for (const auto& unit : units) {
    while (unit->parent != nullptr && empty(*unit->parent)) unit->parent = unit->parent->parent;
  }
  std::erase_if(units, [&](const auto& unit) { return empty(*unit); });
}

}  // namespace

bool keeps_precision(const torch::nn::Module& module, const FsdpOptions& options) {
  const MixedPrecision& precision = options.mixed_precision;
  const bool casts = precision.param_dtype || precision.reduce_dtype || precision.buffer_dtype;
  if (!options.auto_wrap_policy || !casts) return false;
  return precision.module_classes_to_ignore ? precision.module_classes_to_ignore(module)
                                            : is_batch_norm(module);
}

void Ignored::add(const torch::nn::Module& module) {
  for (const auto& below : module.modules()) modules.push_back(below.get());
  for (const auto& list : {module.parameters(), module.buffers()}) {
    for (const at::Tensor& tensor : list) tensors.insert(tensor.unsafeGetTensorImpl());
  }
}

Ignored ignored_by(const torch::nn::Module& module, const FsdpOptions& options) {
  FSDP_CHECK(options.ignored_modules.empty() || options.ignored_states.empty(),
             "ignored_modules and ignored_states are both given: give at most one of them");
  Ignored ignored;
  const bool by_states = options.ignored_modules.empty();
  const char* const option = by_states ? "ignored_states" : "ignored_modules";
  for (const auto& root : by_states ? options.ignored_states.modules() : options.ignored_modules) {
    FSDP_CHECK(root, option, " holds a null pointer");
    FSDP_CHECK(root.get() != &module, option, " holds the module that is wrapped");
    ignored.add(*root);
  }
  std::unordered_set<const c10::TensorImpl*> own;
  for (const at::Tensor& tensor : module.parameters()) own.insert(tensor.unsafeGetTensorImpl());
  for (const at::Tensor& tensor : options.ignored_states.parameters()) {
    FSDP_CHECK(own.count(tensor.unsafeGetTensorImpl()) != 0,
               "ignored_states holds a tensor that is not a parameter of the module");
    ignored.tensors.insert(tensor.unsafeGetTensorImpl());
  }
  return ignored;
}

std::vector<std::unique_ptr<Unit>> units_of(const torch::nn::Module& module,
                                            const FsdpOptions& options, const Ignored& ignored,
                                            const std::shared_ptr<const Sharding>& sharding,
                                            std::vector<InnerUnits> inner) {
  UnitOfModule of_module;
  std::vector<const torch::nn::Module*> apart = ignored.modules;
  for (const InnerUnits& below : inner) {
    for (const auto& any : below.wrapped->module->modules()) apart.push_back(any.get());
  }
  Units units = empty_units(module, options, apart, of_module);
  const std::size_t made = units.size();
  for (InnerUnits& below : inner) add_inner(units, of_module, below);
  const ModuleOfPath modules = modules_of(module);
  const auto innermost = [&](std::string path) -> Unit& {
    for (;; path = parent_path(path)) {
      const auto below = modules.find(path);
      if (below == modules.end()) continue;
      const auto unit = of_module.find(below->second);
      if (unit != of_module.end()) return *unit->second;
    }
  };
  std::unordered_map<const c10::TensorImpl*, Parameter*> seen;
  for (std::size_t i = made; i < units.size(); ++i) {
    for (const auto& parameter : units[i]->parameters)
      seen.emplace(parameter->full.unsafeGetTensorImpl(), parameter.get());
  }
  const auto named = module.named_parameters();
  for (const auto& item : named) {
    const std::string& name = item.key();
    const at::Tensor& tensor = item.value();
    if (!tensor.defined() || ignored.tensors.count(tensor.unsafeGetTensorImpl()) != 0) continue;
    Unit& unit = innermost(parent_path(name));
    const auto known = seen.find(tensor.unsafeGetTensorImpl());
    if (known != seen.end()) {
      const auto& names = known->second->names;
      if (std::find(names.begin(), names.end(), name) != names.end()) continue;
      FSDP_CHECK(known->second->unit == &unit, "parameter '", known->second->name(), "' of ",
                 known->second->unit->quoted(), " is shared with '", name, "' of ", unit.quoted(),
                 ": shared parameters must lie in one unit; wrap a module that holds both, or "
                 "neither of them");
      if (known->second->unit->sharding == nullptr) {
        FSDP_CHECK(placed_of(name, tensor, modules, *sharding).placements.size() ==
                       known->second->placed.placements.size(),
                   "parameter '", known->second->name(), "' is shared with '", name,
                   "', but is part of a larger one in only one of the two places");
      }
      known->second->names.push_back(name);
      continue;
    }
    check_parameter(name, tensor);
    for (const InnerUnits& below : inner) {
      FSDP_CHECK(!name_in(below.path, name), "parameter '", name, "' was registered in '",
                 below.path, "' after that module was sharded: register it before that");
    }
    auto parameter = std::make_unique<Parameter>();
    parameter->names = {name};
    parameter->unit = &unit;
    parameter->full = tensor;
    parameter->placed = placed_of(name, tensor, modules, *sharding);
    parameter->trainable = tensor.requires_grad();
    seen.emplace(tensor.unsafeGetTensorImpl(), parameter.get());
    unit.parameters.push_back(std::move(parameter));
  }
  for (const auto& unit : units) {
    if (!unit->name.empty()) unit->parent = &innermost(parent_path(unit->name));
  }
  drop_empty(units);
  sort_units(units, module);
  std::int64_t id = 0;
  for (const auto& unit : units) {
    unit->id = id++;
    if (unit->sharding) continue;  // an inner one
    unit->sharding = sharding;
    group_by_dtype(*unit, options);
    check_flat(*unit);
  }
  return units;
}

namespace {

// Gives access to the registered parameters of a module without copying them.
struct OwnParameters : torch::nn::Module {
  using torch::nn::Module::parameters_;
};

// Returns a number that changes if a parameter or a module is registered or replaced.
std::size_t registered_in(const torch::nn::Module& module) {
  std::size_t sum = 0;
  const auto add = [&](std::size_t value) { sum = sum * 31 + value; };
  for (const auto& item : module.*(&OwnParameters::parameters_))
    add(reinterpret_cast<std::uintptr_t>(item.value().unsafeGetTensorImpl()));
  for (const auto& child : module.children()) add(registered_in(*child));
  return sum;
}

}  // namespace

void note_registered(WrappedModule& wrapped) {
  wrapped.registered = registered_in(*wrapped.module);
}

void check_registered(WrappedModule& wrapped, const std::vector<std::unique_ptr<Unit>>& units) {
  const std::size_t now = registered_in(*wrapped.module);
  if (now == wrapped.registered) return;
  std::unordered_set<const c10::TensorImpl*> known;
  for (const auto& ignored : wrapped.unmanaged) known.insert(ignored.second.unsafeGetTensorImpl());
  for (const auto& unit : units) {
    for (const auto& parameter : unit->parameters)
      known.insert(parameter->full.unsafeGetTensorImpl());
  }
  std::unordered_set<const c10::TensorImpl*> present;
  for (const auto& item : wrapped.module->named_parameters()) {
    if (!item.value().defined()) continue;
    const auto* const tensor = item.value().unsafeGetTensorImpl();
    present.insert(tensor);
    FSDP_CHECK(known.count(tensor) != 0, "parameter '", item.key(),
               "' was registered after the module was wrapped: it is not sharded, and its gradient "
               "would not be reduced; register it before the module is wrapped");
  }
  for (const auto& unit : units) {
    for (const auto& parameter : unit->parameters)
      FSDP_CHECK(present.count(parameter->full.unsafeGetTensorImpl()) != 0, "parameter '",
                 parameter->name(),
                 "' is not registered in the module any more (replace_module, "
                 "unregister_module): change the module before it is wrapped");
  }
  wrapped.registered = now;
}

std::vector<std::string> fingerprint(const std::vector<std::unique_ptr<Unit>>& units,
                                     const FsdpOptions& options) {
  std::vector<std::string> lines;
  const auto line = [&](const auto&... parts) {
    std::ostringstream text;
    (text << ... << parts);
    lines.push_back(text.str());
  };
  const auto dtype_name = [](const std::optional<c10::ScalarType>& dtype) {
    return dtype ? c10::toString(*dtype) : "none";
  };
  line("sharding strategy ", name_of(options.sharding_strategy));
  line("use_orig_params ", options.use_orig_params);
  line("backward prefetch ", static_cast<int>(options.backward_prefetch));
  line("forward prefetch ", options.forward_prefetch);
  line("bucket bytes ", options.bucket_bytes);
  line("mixed precision: parameters ", dtype_name(options.mixed_precision.param_dtype),
       ", reduction ", dtype_name(options.mixed_precision.reduce_dtype));
  line("sync_module_states ", options.sync_module_states);
  for (const auto& unit : units) {
    line("unit '", unit->name, "'");
    for (const auto& parameter : unit->parameters) {
      line("parameter '", parameter->name(), "' ", c10::toString(parameter->full.scalar_type()),
           " ", at::IntArrayRef(parameter->placed.shape), parameter->trainable ? "" : " frozen");
    }
  }
  return lines;
}

}  // namespace fsdp::internal
