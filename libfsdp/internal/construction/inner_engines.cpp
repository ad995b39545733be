// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/construction/inner_engines.h"

#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/engine/engine.h"
#include "libfsdp/internal/units/unit.h"

namespace fsdp::internal {

InnerEngines::InnerEngines(const torch::nn::Module& root) {
  std::unordered_map<const torch::nn::Module*, Engine*> engines;
  for (const at::Tensor& tensor : root.parameters()) {
    const Parameter* const parameter = parameter_of(tensor);
    if (parameter == nullptr || parameter->unit->engine == nullptr) continue;
    Engine* const engine = parameter->unit->engine;
    engines.emplace(engine->wrapped()->module.get(), engine);
  }
  if (engines.empty()) return;
  for (const auto& item : root.named_modules("", /*include_self=*/false)) {
    const auto found = engines.find(item.value().get());
    if (found == engines.end()) continue;
    Engine& engine = *found->second;
    FSDP_CHECK(!engine.has_run(), "module '", item.key(),
               "' ran a forward before the module around it was sharded: call fully_shard() on all "
               "modules, inner ones first, before the first forward");
    inner_.push_back({item.key(), engine.wrapped(), engine.life()});
    engines.erase(found);
  }
}

Ignored InnerEngines::with_ignored(const Ignored& ignored) const {
  Ignored result = ignored;
  for (const Inner& inner : inner_) {
    for (const auto& item : inner.wrapped->unmanaged)
      result.tensors.insert(item.second.unsafeGetTensorImpl());
  }
  return result;
}

Ignored InnerEngines::apart(const Ignored& ignored) const {
  Ignored result = ignored;
  for (const Inner& inner : inner_) result.add(*inner.wrapped->module);
  return result;
}

std::vector<InnerUnits> InnerEngines::release() {
  std::vector<InnerUnits> result;
  for (const Inner& inner : inner_)
    result.push_back({inner.path, inner.wrapped, inner.life->engine->release_units()});
  return result;
}

void InnerEngines::restore_buffer_dtypes(
    std::unordered_map<std::string, c10::ScalarType>& dtypes) const {
  for (const Inner& inner : inner_) {
    for (const auto& [name, dtype] : inner.wrapped->buffer_dtypes)
      dtypes[inner.path + "." + name] = dtype;
  }
}

void InnerEngines::belong_to(const std::shared_ptr<EngineLife>& outer) const {
  for (const Inner& inner : inner_) {
    inner.life->name_in_outer = inner.path;
    inner.life->outer = outer;
  }
}

std::vector<Unit*> new_units(const std::vector<std::unique_ptr<Unit>>& units,
                             const Sharding& sharding) {
  std::vector<Unit*> result;
  for (const auto& unit : units) {
    if (unit->sharding.get() == &sharding) result.push_back(unit.get());
  }
  return result;
}

}  // namespace fsdp::internal
