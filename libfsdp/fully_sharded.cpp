// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/fully_sharded.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_set>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include "libfsdp/agree.h"
#include "libfsdp/internal/comm/devices.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/construction/construction.h"
#include "libfsdp/internal/construction/left_out_option.h"
#include "libfsdp/internal/engine/engine.h"
#include "libfsdp/internal/engine/mesh.h"
#include "libfsdp/internal/engine/module_units.h"

namespace fsdp {
using namespace internal;
namespace {

FsdpOptions checked(FsdpOptions options) {
  leave_out_option(options);
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

std::vector<at::Tensor> managed(const std::vector<at::Tensor>& tensors, const Ignored& ignored) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) {
    if (ignored.tensors.count(tensor.unsafeGetTensorImpl()) == 0) result.push_back(tensor);
  }
  return result;
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
               ": a sharded module computes on one device; move the module to it, set device_id "
               "to have what is on the CPU moved, or ignore the others");
  }
}

c10::Device compute_device(const torch::nn::Module& module, const FsdpOptions& options,
                           const Ignored& ignored) {
  const auto device = device_to_compute_on(options.device_id, options.process_group->device());
  check_single_device(module, ignored, /*moves=*/device && !device->is_cpu());
  if (device) return *device;
  for (const at::Tensor& tensor : managed(module.parameters(), ignored)) {
    if (!tensor.is_meta()) return tensor.device();
  }
  return c10::kCPU;
}

// Has access to what a module has registered without a copy of it.
struct Registry : torch::nn::Module {
  using torch::nn::Module::parameters_;
};

// Returns a number that changes if a parameter or a module is registered or replaced.
std::size_t registered_in(const torch::nn::Module& module) {
  std::size_t sum = 0;
  const auto add = [&](std::size_t value) { sum = sum * 31 + value; };
  for (const auto& item : module.*(&Registry::parameters_))
    add(reinterpret_cast<std::uintptr_t>(item.value().unsafeGetTensorImpl()));
  for (const auto& child : module.children()) add(registered_in(*child));
  return sum;
}

// torch::nn::Module::apply() begins with the parents.
void apply_below(torch::nn::Module& module, const std::function<void(torch::nn::Module&)>& fn) {
  for (const auto& child : module.children()) apply_below(*child, fn);
  fn(module);
}

}  // namespace

ShardedModule::ShardedModule(std::shared_ptr<torch::nn::Module> module, FsdpOptions given)
    : module_(std::move(module)) {
  FSDP_CHECK(module_, "the module to shard is a null pointer");
  FsdpOptions options = checked(std::move(given));
  const Ignored ignored = ignored_by(*module_, options);
  const c10::Device device = compute_device(*module_, options, ignored);
  std::vector<std::unique_ptr<Unit>> units;
  agree(options.process_group, "wrapping the module",
        [&] { units = units_of(*module_, options, ignored); });
  require_same(options.process_group, "the modules to shard", fingerprint(units, options));
  const Mesh mesh = mesh_of(options);
  construct(*module_, units, options, ignored, mesh, device);
  for (const auto& item : module_->named_buffers())
    buffer_dtypes_.emplace(item.key(), item.value().scalar_type());
  if (options.mixed_precision.buffer_dtype) cast_buffers(*module_, options, ignored);

  const MixedPrecision& precision = options.mixed_precision;
  if (!is_host(device)) input_cast_.device = device;
  if (precision.cast_root_forward_inputs || precision.cast_forward_inputs)
    input_cast_.dtype = precision.param_dtype;
  if (options.activation_checkpointing_policy) {
    checkpoint_policy_ = std::make_shared<const CheckpointPolicy>(
        [policy = options.activation_checkpointing_policy, any = recomputes_](const auto& inner) {
          const bool chosen = policy(inner);
          if (chosen) *any = true;
          return chosen;
        });
  }
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : module_->named_parameters()) {
    const auto* impl = item.value().unsafeGetTensorImpl();
    if (ignored.tensors.count(impl) != 0 && seen.insert(impl).second)
      unmanaged_.emplace_back(item.key(), item.value());
  }
  registered_ = registered_in(*module_);
  engine_ = std::make_unique<Engine>(std::move(options), mesh.shard, mesh.replicate, device,
                                     std::move(units));
}

ShardedModule::~ShardedModule() = default;

const std::shared_ptr<torch::nn::Module>& ShardedModule::module() const noexcept {
  return module_;
}

const FsdpOptions& ShardedModule::options() const noexcept {
  return engine_->options();
}

Engine& ShardedModule::engine() const noexcept {
  return *engine_;
}

std::vector<at::Tensor> ShardedModule::parameters() const {
  std::vector<at::Tensor> result;
  for (const NamedTensor& named : named_parameters()) result.push_back(named.second);
  return result;
}

std::vector<NamedTensor> ShardedModule::named_parameters() const {
  std::vector<NamedTensor> result;
  if (options().use_orig_params) {
    // Iterates in the order of the module, independent of the units.
    std::unordered_set<const c10::TensorImpl*> seen;
    for (const auto& item : module_->named_parameters()) {
      for (const auto& unit : engine_->units()) {
        for (const auto& parameter : unit->parameters) {
          if (parameter->full.is_same(item.value()) &&
              seen.insert(item.value().unsafeGetTensorImpl()).second)
            result.emplace_back(parameter->name(), parameter->shard);
        }
      }
    }
  } else {
    for (const auto& unit : engine_->units()) {
      for (const FlatGroup& group : unit->groups)
        result.emplace_back(flat_name(*unit, group), group.flat);
    }
  }
  result.insert(result.end(), unmanaged_.begin(), unmanaged_.end());
  return result;
}

std::vector<NamedTensor> ShardedModule::named_buffers() const {
  std::vector<NamedTensor> result;
  for (const auto& item : module_->named_buffers()) result.emplace_back(item.key(), item.value());
  return result;
}

std::vector<std::string> ShardedModule::unit_names() const {
  std::vector<std::string> names;
  for (const auto& unit : engine_->units()) names.push_back(unit->name);
  return names;
}

std::vector<std::shared_ptr<torch::nn::Module>> ShardedModule::fsdp_modules(bool root_only) const {
  std::vector<std::shared_ptr<torch::nn::Module>> result{module_};
  if (root_only) return result;
  const auto modules = module_->named_modules("", /*include_self=*/false);
  for (const auto& unit : engine_->units()) {
    if (!unit->name.empty()) result.push_back(modules[unit->name]);
  }
  return result;
}

void ShardedModule::set_requires_gradient_sync(bool sync) {
  engine_->set_gradient_sync(sync);
}

bool ShardedModule::requires_gradient_sync() const noexcept {
  return engine_->gradient_sync();
}

void ShardedModule::zero_grad(bool set_to_none) {
  engine_->zero_grad(set_to_none);
  for (const NamedTensor& ignored : unmanaged_) {
    at::Tensor tensor = ignored.second;
    at::Tensor& gradient = tensor.mutable_grad();
    if (!gradient.defined()) continue;
    if (set_to_none)
      gradient.reset();
    else
      gradient.detach_().zero_();
  }
}

void ShardedModule::train(bool on) {
  module_->train(on);
}

bool ShardedModule::is_training() const noexcept {
  return module_->is_training();
}

void ShardedModule::register_comm_hook(CommHook hook) {
  FSDP_CHECK(hook, "the communication hook is empty");
  engine_->set_comm_hook(std::move(hook));
}

ShardedModule& ShardedModule::apply(const std::function<void(torch::nn::Module&)>& fn) {
  FullParams scope = summon_full_params();
  {
    const at::NoGradGuard no_grad;
    apply_below(*module_, fn);
  }
  scope.close();
  return *this;
}

void ShardedModule::start_trace() {
  engine_->start_trace();
}

void ShardedModule::write_trace(const std::filesystem::path& path) const {
  FSDP_CHECK(engine_->trace() != nullptr, "there is no trace to write; call start_trace() first");
  engine_->trace()->write(path);
}

void ShardedModule::check_registered() {
  const std::size_t now = registered_in(*module_);
  if (now == registered_) return;
  std::unordered_set<const c10::TensorImpl*> known;
  for (const NamedTensor& ignored : unmanaged_) known.insert(ignored.second.unsafeGetTensorImpl());
  for (const auto& unit : engine_->units()) {
    for (const auto& parameter : unit->parameters)
      known.insert(parameter->full.unsafeGetTensorImpl());
  }
  std::unordered_set<const c10::TensorImpl*> present;
  for (const auto& item : module_->named_parameters()) {
    if (!item.value().defined()) continue;
    const auto* const tensor = item.value().unsafeGetTensorImpl();
    present.insert(tensor);
    FSDP_CHECK(known.count(tensor) != 0, "parameter '", item.key(),
               "' was registered after the module was wrapped: it is not sharded, and its "
               "gradient would not be reduced; register it before");
  }
  for (const auto& unit : engine_->units()) {
    for (const auto& parameter : unit->parameters)
      FSDP_CHECK(present.count(parameter->full.unsafeGetTensorImpl()) != 0, "parameter '",
                 parameter->name(),
                 "' is not registered in the module any more (replace_module, "
                 "unregister_module): change the module before it is wrapped");
  }
  registered_ = now;
}

void ShardedModule::begin_forward() {
  check_registered();
  engine_->begin_forward();
}

void ShardedModule::end_forward() {
  engine_->end_forward();
  if (checkpoint_policy_ && at::GradMode::is_enabled()) check_recomputed();
}

// Forward asks the policy about each module that it calls by checkpoint_module().
void ShardedModule::check_recomputed() {
  if (recomputes_->exchange(true)) return;
  std::vector<std::string> chosen;
  for (const auto& item : module_->named_modules("", /*include_self=*/false)) {
    if (options().activation_checkpointing_policy(*item.value())) chosen.push_back(item.key());
  }
  if (chosen.empty()) return;
  TORCH_WARN("activation_checkpointing_policy chooses ", chosen.size(), " modules ('",
             chosen.front(),
             "', ...), and forward recomputes none of them: a module of C++ has no "
             "hooks; have forward call them by fsdp::checkpoint_module(module, x)");
}

void ShardedModule::abandon_forward(const char* what) noexcept {
  engine_->abandon_forward(what);
}

}  // namespace fsdp
