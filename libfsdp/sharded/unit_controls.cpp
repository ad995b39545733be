// SPDX-License-Identifier: Apache-2.0
// The controls of units that PyTorch's FSDPModule has.
#include <algorithm>
#include <memory>
#include <utility>

#include <torch/nn/module.h>

#include "libfsdp/fully_sharded.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/engine/engine.h"

namespace fsdp {
using namespace internal;
namespace {

// Changes the module's own unit, and those below it if `recurse`.
template <typename Change>
void change(const ShardedModule& module, bool recurse, const Change& change) {
  std::vector<Unit*> units = module.units();
  if (!recurse) units.resize(1);
  engine_of(module).change(units, change);
}

std::vector<Unit*> own_units(const ShardedModule& module,
                             const std::vector<ShardedModule*>& others) {
  std::vector<Unit*> result;
  for (const ShardedModule* other : others) {
    FSDP_CHECK(other != nullptr, "a module to prefetch is a null pointer");
    FSDP_CHECK(&engine_of(*other) == &engine_of(module), "module '", other->units().front()->name,
               "' cannot be prefetched: it is in another sharded module");
    result.push_back(other->units().front());
  }
  return result;
}

}  // namespace

UnshardHandle::UnshardHandle(std::weak_ptr<EngineLife> life, Unit* unit)
    : life_(std::move(life)), unit_(unit) {}

void UnshardHandle::wait() {
  Engine* const engine = engine_of(life_);
  FSDP_CHECK(engine != nullptr, "the sharded module that is being unsharded has been destroyed");
  engine->finish_unshard(*unit_);
}

UnshardHandle ShardedModule::unshard(bool async) {
  Engine& all = engine_of(*this);
  Unit* const unit = units().front();
  all.unshard(*unit);
  UnshardHandle handle(all.life(), unit);
  if (!async) handle.wait();
  return handle;
}

void ShardedModule::reshard() {
  engine_of(*this).reshard_now(*units().front());
}

NoSync::NoSync(ShardedModule& module) : life_(engine_of(module).life()) {
  engine_of(module).change(module.units(), [&](Unit& unit) {
    before_.emplace(&unit, unit.syncs_gradients);
    unit.syncs_gradients = false;
  });
}

NoSync::~NoSync() {
  Engine* const engine = engine_of(life_);
  if (engine == nullptr) return;
  for (const auto& [unit, syncs] : before_)
    engine->change({unit}, [&, syncs = syncs](Unit& one) { one.syncs_gradients = syncs; });
}

void ShardedModule::set_requires_gradient_sync(bool sync, bool recurse) {
  change(*this, recurse, [&](Unit& unit) { unit.syncs_gradients = sync; });
}

void ShardedModule::set_reshard_after_forward(bool reshard, bool recurse) {
  change(*this, recurse, [&](Unit& unit) { unit.reshards_after_forward = reshard; });
}

void ShardedModule::set_reshard_after_backward(bool reshard, bool recurse) {
  change(*this, recurse, [&](Unit& unit) { unit.reshards_after_backward = reshard; });
}

void ShardedModule::set_requires_all_reduce(bool all_reduce, bool recurse) {
  change(*this, recurse, [&](Unit& unit) { unit.all_reduces = all_reduce; });
}

void ShardedModule::set_is_last_backward(bool last) {
  engine_of(*this).set_is_last_backward(last);
}

void ShardedModule::set_modules_to_forward_prefetch(const std::vector<ShardedModule*>& modules) {
  const std::vector<Unit*> list = own_units(*this, modules);
  change(*this, false, [&](Unit& unit) { unit.prefetched_in_forward = list; });
}

void ShardedModule::set_modules_to_backward_prefetch(const std::vector<ShardedModule*>& modules) {
  const std::vector<Unit*> list = own_units(*this, modules);
  change(*this, false, [&](Unit& unit) { unit.prefetched_in_backward = list; });
}

void ShardedModule::set_gradient_divide_factor(double factor, bool recurse) {
  FSDP_CHECK(factor > 0, "expected a gradient divide factor above 0, found ", factor);
  change(*this, recurse, [&](Unit& unit) { unit.divide_factor = factor; });
}

void ShardedModule::set_all_reduce_hook(const ReducedHook& hook, bool recurse) {
  FSDP_CHECK(hook, "the hook for reduced gradients is empty");
  change(*this, recurse, [&](Unit& unit) { unit.reduced_hook = hook; });
}

std::shared_ptr<ShardedModule> ShardedModule::part(const torch::nn::Module& inner) const {
  const std::vector<Unit*> all = units();
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const Unit* unit) { return unit->module == &inner; });
  FSDP_CHECK(found != all.end(), "the module is not a unit of the sharded module");
  const std::string name = name_of(**found);
  FSDP_CHECK(!name.empty(), "part(): expected a module inside this one, found this module itself");
  std::shared_ptr<ShardedModule> result(new ShardedModule);
  result->wrapped_ = std::make_shared<WrappedModule>();
  result->wrapped_->module = module()->named_modules()[name];
  for (const NamedTensor& ignored : unmanaged()) {
    if (const auto own = name_in(name, ignored.first))
      result->wrapped_->unmanaged.emplace_back(*own, ignored.second);
  }
  for (const auto& [buffer, dtype] : buffer_dtypes()) {
    if (const auto own = name_in(name, buffer))
      result->wrapped_->buffer_dtypes.emplace(*own, dtype);
  }
  result->life_ = std::make_shared<EngineLife>();
  result->life_->outer = life_;
  result->life_->name_in_outer = name;
  return result;
}

}  // namespace fsdp
