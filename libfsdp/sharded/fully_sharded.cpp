// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/fully_sharded.h"

#include <algorithm>
#include <unordered_set>

#include <ATen/core/grad_mode.h>

#include "libfsdp/agree.h"
#include "libfsdp/internal/comm/devices.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/left_out.h"
#include "libfsdp/internal/construction/construction.h"
#include "libfsdp/internal/construction/inner_engines.h"
#include "libfsdp/internal/engine/engine.h"
#include "libfsdp/internal/units/module_units.h"
#include "libfsdp/internal/units/sharding.h"

namespace fsdp {
using namespace internal;
namespace {

FsdpOptions checked(FsdpOptions options) {
  leave_out_option(options);
  take_groups_of_mesh(options);
  FSDP_CHECK(options.process_group,
             "FsdpOptions::process_group is not set; make one with "
             "fsdp::init_process_group()");
  FSDP_CHECK(options.bucket_bytes >= 0, "bucket_bytes is ", options.bucket_bytes);
  for (const auto& dtype :
       {options.mixed_precision.param_dtype, options.mixed_precision.reduce_dtype,
        options.mixed_precision.buffer_dtype}) {
    FSDP_CHECK(!dtype || c10::isFloatingType(*dtype), "mixed precision in ", c10::toString(*dtype),
               ", which is not a floating-point dtype");
  }
  return options;
}

// Casts buffers, except those of modules that mixed precision leaves alone.
void cast_buffers(torch::nn::Module& module, const FsdpOptions& options, const Ignored& ignored) {
  const at::NoGradGuard no_grad;
  const c10::ScalarType dtype = *options.mixed_precision.buffer_dtype;
  std::unordered_set<const c10::TensorImpl*> kept = ignored.tensors;
  for (const auto& inner : module.modules(/*include_self=*/false)) {
    if (!keeps_precision(*inner, options)) continue;
    for (const at::Tensor& buffer : inner->buffers()) kept.insert(buffer.unsafeGetTensorImpl());
  }
  for (const at::Tensor& buffer : module.buffers()) {
    if (!buffer.is_floating_point() || kept.count(buffer.unsafeGetTensorImpl()) != 0) continue;
    buffer.set_data(buffer.to(dtype));
  }
}

// A module may lie partly on the CPU if its parameters are to move to a device.
void check_single_device(const torch::nn::Module& module, const Ignored& ignored, bool moves) {
  std::string first;
  std::optional<c10::Device> device;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& tensor = item.value();
    if (!tensor.defined() || tensor.is_meta() || (moves && tensor.is_cpu()) ||
        ignored.tensors.count(tensor.unsafeGetTensorImpl()) != 0)
      continue;
    if (!device) {
      device = tensor.device();
      first = item.key();
    }
    FSDP_CHECK(tensor.device() == *device, "parameter '", item.key(), "' is on ", tensor.device(),
               " and '", first, "' on ", *device,
               ": a sharded module computes on one device; move the module to one device, set "
               "device_id to move parameters from the CPU, or ignore the other parameters");
  }
}

c10::Device compute_device(const torch::nn::Module& module, const FsdpOptions& options,
                           const Ignored& ignored) {
  const auto device = device_to_compute_on(options.device_id, options.process_group->device());
  check_single_device(module, ignored, /*moves=*/device && !device->is_cpu());
  if (device) return *device;
  for (const at::Tensor& tensor : module.parameters()) {
    if (!ignored.tensors.contains(tensor.unsafeGetTensorImpl()) && !tensor.is_meta())
      return tensor.device();
  }
  return c10::kCPU;
}

// Begins with the children; torch::nn::Module::apply() begins with the parents.
void apply_below(torch::nn::Module& module, const std::function<void(torch::nn::Module&)>& fn) {
  for (const auto& child : module.children()) apply_below(*child, fn);
  fn(module);
}

}  // namespace

ShardedModule::ShardedModule(std::shared_ptr<torch::nn::Module> module, FsdpOptions options) {
  shard(std::move(module), std::move(options), nullptr);
}

ShardedModule::ShardedModule(std::shared_ptr<torch::nn::Module> module, FsdpOptions options,
                             const PerModule& per_module) {
  shard(std::move(module), std::move(options), &per_module);
}

void ShardedModule::shard(std::shared_ptr<torch::nn::Module> module, FsdpOptions given,
                          const PerModule* per_module) {
  FSDP_CHECK(module, "the module to shard is a null pointer");
  wrapped_ = std::make_shared<WrappedModule>();
  wrapped_->module = std::move(module);
  torch::nn::Module& root = *wrapped_->module;
  FsdpOptions options = checked(std::move(given));
  auto sharding = std::make_shared<Sharding>(sharding_of(options));
  if (per_module != nullptr) {
    sharding->reshards_after_forward =
        per_module->reshards_after_forward.value_or(sharding->reshards_after_forward);
    sharding->output_dtype = per_module->output_dtype;
  }
  const Ignored ignored = ignored_by(root, options);
  const c10::Device device = compute_device(root, options, ignored);
  InnerEngines inner;
  Ignored apart;
  std::vector<std::unique_ptr<Unit>> units;
  agree(options.process_group, "wrapping the module", [&] {
    inner = InnerEngines(root);
    apart = inner.apart(ignored);
    units = units_of(root, options, inner.with_ignored(ignored), sharding, inner.release());
  });
  require_same(options.process_group, "the modules to shard", fingerprint(units, options));
  sharding->mesh = mesh_of(options);
  if (per_module != nullptr && per_module->kept_over)
    sharding->kept_over = neighbours(sharding->mesh.shard, *per_module->kept_over);
  construct(root, new_units(units, *sharding), options, apart, sharding->mesh, device);
  for (const auto& item : root.named_buffers())
    wrapped_->buffer_dtypes.emplace(item.key(), item.value().scalar_type());
  inner.restore_buffer_dtypes(wrapped_->buffer_dtypes);
  if (options.mixed_precision.buffer_dtype) cast_buffers(root, options, apart);

  const MixedPrecision& precision = options.mixed_precision;
  if (!is_host(device)) input_cast_.device = device;
  if (precision.cast_root_forward_inputs || precision.cast_forward_inputs)
    input_cast_.dtype = precision.param_dtype;
  if (options.activation_checkpointing_policy) {
    checkpoint_policy_ = std::make_shared<const CheckpointPolicy>(
        [policy = options.activation_checkpointing_policy, any = recomputes_](const auto& called) {
          const bool chosen = policy(called);
          if (chosen) *any = true;
          return chosen;
        });
  }
  const auto unmanaged = inner.with_ignored(ignored).tensors;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : root.named_parameters()) {
    const auto* impl = item.value().unsafeGetTensorImpl();
    if (unmanaged.count(impl) != 0 && seen.insert(impl).second)
      wrapped_->unmanaged.emplace_back(item.key(), item.value());
  }
  note_registered(*wrapped_);
  engine_ = std::make_unique<Engine>(std::move(options), wrapped_, device, std::move(units),
                                     per_module == nullptr ? Bracket::kCalled : Bracket::kNone);
  life_ = engine_->life();
  inner.belong_to(life_);
}

ShardedModule::~ShardedModule() = default;

const std::shared_ptr<torch::nn::Module>& ShardedModule::module() const noexcept {
  return wrapped_->module;
}

const FsdpOptions& ShardedModule::options() const {
  return engine_of(*this).options();
}

Engine& internal::engine_of(const ShardedModule& module) {
  const EngineLife* life = module.life_.get();
  while (life->outer) life = life->outer.get();
  FSDP_CHECK(life->engine != nullptr,
             "the sharded module around this one has been destroyed: keep it as long as its parts");
  return *life->engine;
}

bool ShardedModule::is_taken_in() const noexcept {
  return life_->engine == nullptr;
}

std::optional<std::string> ShardedModule::local_name(const std::string& name) const {
  std::vector<const std::string*> parts;  // the innermost first
  for (const EngineLife* life = life_.get(); life->outer; life = life->outer.get())
    parts.push_back(&life->name_in_outer);
  std::string path;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    if (!path.empty()) path += '.';
    path += **part;
  }
  return name_in(path, name);
}

std::vector<Unit*> ShardedModule::units() const {
  std::vector<Unit*> result;
  for (const auto& unit : engine_of(*this).units()) {
    if (local_name(unit->name)) result.push_back(unit.get());
  }
  return result;
}

bool ShardedModule::has_flat_parameters() const {
  const std::vector<Unit*> all = units();
  return std::any_of(all.begin(), all.end(), [](const Unit* unit) { return unit->sharding->flat; });
}

std::string ShardedModule::name_of(const Unit& unit) const {
  return local_name(unit.name).value_or(unit.name);
}

std::vector<std::string> ShardedModule::names_of(const Parameter& parameter) const {
  std::vector<std::string> result;
  for (const std::string& name : parameter.names) {
    if (auto local = local_name(name)) result.push_back(std::move(*local));
  }
  return result;
}

const std::vector<NamedTensor>& ShardedModule::unmanaged() const noexcept {
  return wrapped_->unmanaged;
}

const std::unordered_map<std::string, c10::ScalarType>& ShardedModule::buffer_dtypes()
    const noexcept {
  return wrapped_->buffer_dtypes;
}

std::vector<at::Tensor> ShardedModule::parameters() const {
  std::vector<at::Tensor> result;
  for (const NamedTensor& named : named_parameters()) result.push_back(named.second);
  return result;
}

std::vector<NamedTensor> ShardedModule::named_parameters() const {
  std::vector<NamedTensor> result;
  std::unordered_map<const c10::TensorImpl*, const Parameter*> parameters;
  for (const Unit* unit : units()) {
    for (const auto& parameter : unit->parameters) {
      if (!unit->sharding->flat)
        parameters.emplace(parameter->full.unsafeGetTensorImpl(), parameter.get());
    }
    if (!unit->sharding->flat) continue;
    for (const FlatGroup& group : unit->groups)
      result.emplace_back(flat_name(name_of(*unit), *unit, group), group.flat);
  }
  // Iterates in the order of the module, independent of the units.
  for (const auto& item : module()->named_parameters()) {
    const auto found = parameters.find(item.value().unsafeGetTensorImpl());
    if (found == parameters.end()) continue;
    result.emplace_back(item.key(), found->second->shard);
    parameters.erase(found);
  }
  result.insert(result.end(), unmanaged().begin(), unmanaged().end());
  return result;
}

std::vector<NamedTensor> ShardedModule::named_buffers() const {
  return module()->named_buffers().pairs();
}

std::vector<std::string> ShardedModule::unit_names() const {
  std::vector<std::string> names;
  for (const Unit* unit : units()) names.push_back(name_of(*unit));
  return names;
}

std::vector<std::shared_ptr<torch::nn::Module>> ShardedModule::fsdp_modules(bool root_only) const {
  std::vector<std::shared_ptr<torch::nn::Module>> result{module()};
  if (root_only) return result;
  const auto modules = module()->named_modules("", /*include_self=*/false);
  for (const Unit* unit : units()) {
    if (!name_of(*unit).empty()) result.push_back(modules[name_of(*unit)]);
  }
  return result;
}

bool ShardedModule::requires_gradient_sync() const {
  return units().front()->syncs_gradients;
}

void ShardedModule::zero_grad(bool set_to_none) {
  engine_of(*this).zero_grad(units(), set_to_none);
  for (const NamedTensor& ignored : unmanaged()) {
    at::Tensor tensor = ignored.second;
    at::Tensor& gradient = tensor.mutable_grad();
    if (!gradient.defined()) continue;
    if (set_to_none)
      gradient.reset();
    else
      gradient.detach_().zero_();
  }
}

void ShardedModule::register_comm_hook(const CommHook& hook) {
  FSDP_CHECK(hook, "the communication hook is empty");
  engine_of(*this).set_comm_hook(units(), hook);
}

ShardedModule& ShardedModule::apply(const std::function<void(torch::nn::Module&)>& fn) {
  FullParams scope = summon_full_params();
  {
    const at::NoGradGuard no_grad;
    apply_below(*module(), fn);
  }
  scope.close();
  return *this;
}

void ShardedModule::start_trace() {
  engine_of(*this).start_trace();
}

void ShardedModule::write_trace(const std::filesystem::path& path) const {
  FSDP_CHECK(engine_of(*this).trace() != nullptr,
             "there is no trace to write; call start_trace() first");
  engine_of(*this).trace()->write(path);
}

void ShardedModule::begin_forward() {
  engine_of(*this).begin_forward();
}

void ShardedModule::end_forward() {
  engine_of(*this).end_forward();
  if (checkpoint_policy_ && at::GradMode::is_enabled()) check_recomputed();
}

// Warns if the policy selects modules and forward called none of them by checkpoint_module().
void ShardedModule::check_recomputed() {
  if (recomputes_->exchange(true)) return;
  std::vector<std::string> chosen;
  for (const auto& item : module()->named_modules("", /*include_self=*/false)) {
    if (options().activation_checkpointing_policy(*item.value())) chosen.push_back(item.key());
  }
  if (chosen.empty()) return;
  TORCH_WARN("activation_checkpointing_policy selects ", chosen.size(), " modules ('",
             chosen.front(),
             "', ...), but forward recomputes none of them: C++ modules have no hooks; call the "
             "modules in forward through fsdp::checkpoint_module(module, x)");
}

void ShardedModule::abandon_forward(const char* what) noexcept {
  engine_of(*this).abandon_forward(what);
}

}  // namespace fsdp
