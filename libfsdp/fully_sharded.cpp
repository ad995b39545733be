// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/fully_sharded.h"

#include <algorithm>
#include <unordered_set>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include "libfsdp/agree.h"
#include "libfsdp/internal/comm/devices.h"
#include "libfsdp/internal/construction/construction.h"
#include "libfsdp/internal/engine/engine.h"
#include "libfsdp/internal/engine/mesh.h"
#include "libfsdp/internal/engine/module_units.h"

namespace fsdp {
using namespace internal;
namespace {

FsdpOptions checked(FsdpOptions options) {
  TORCH_CHECK(options.process_group,
              "FsdpOptions::process_group is not set; make one with "
              "fsdp::init_process_group()");
  TORCH_CHECK(options.bucket_bytes >= 0, "bucket_bytes is ", options.bucket_bytes);
  for (const auto& dtype :
       {options.mixed_precision.param_dtype, options.mixed_precision.reduce_dtype,
        options.mixed_precision.buffer_dtype}) {
    TORCH_CHECK(!dtype || c10::isFloatingType(*dtype), "mixed precision in ", c10::toString(*dtype),
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
void cast_buffers(torch::nn::Module& module, c10::ScalarType dtype, const Ignored& ignored,
                  const std::vector<std::unique_ptr<Unit>>& units) {
  const at::NoGradGuard no_grad;
  for (const auto& item : module.named_buffers()) {
    at::Tensor buffer = item.value();
    const bool left_alone = std::any_of(units.begin(), units.end(), [&](const auto& unit) {
      return !unit->mixed_precision && item.key().rfind(unit->name + ".", 0) == 0;
    });
    if (left_alone || !buffer.is_floating_point() ||
        ignored.tensors.count(buffer.unsafeGetTensorImpl()) != 0)
      continue;
    buffer.set_data(buffer.to(dtype));
  }
}

c10::Device compute_device(const torch::nn::Module& module, const FsdpOptions& options,
                           const Ignored& ignored) {
  const auto device = device_to_compute_on(options.device_id, options.process_group->device());
  if (device) return *device;
  for (const at::Tensor& tensor : managed(module.parameters(), ignored)) {
    if (!tensor.is_meta()) return tensor.device();
  }
  return c10::kCPU;
}

}  // namespace

ShardedModule::ShardedModule(std::shared_ptr<torch::nn::Module> module, FsdpOptions given)
    : module_(std::move(module)) {
  TORCH_CHECK(module_, "the module to shard is a null pointer");
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
  if (options.mixed_precision.buffer_dtype)
    cast_buffers(*module_, *options.mixed_precision.buffer_dtype, ignored, units);

  const MixedPrecision& precision = options.mixed_precision;
  if (!is_host(device)) input_cast_.device = device;
  if (precision.cast_root_forward_inputs || precision.cast_forward_inputs)
    input_cast_.dtype = precision.param_dtype;
  if (options.activation_checkpointing_policy)
    checkpoint_policy_ =
        std::make_shared<const CheckpointPolicy>(options.activation_checkpointing_policy);
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : module_->named_parameters()) {
    const auto* impl = item.value().unsafeGetTensorImpl();
    if (ignored.tensors.count(impl) != 0 && seen.insert(impl).second)
      unmanaged_.emplace_back(item.key(), item.value());
  }
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
  TORCH_CHECK(hook, "the communication hook is empty");
  engine_->set_comm_hook(std::move(hook));
}

void ShardedModule::apply(const std::function<void(torch::nn::Module&)>& fn) {
  FullParams scope = summon_full_params();
  const at::NoGradGuard no_grad;
  module_->apply(fn);
  scope.close();
}

void ShardedModule::start_trace() {
  engine_->start_trace();
}

void ShardedModule::write_trace(const std::filesystem::path& path) const {
  TORCH_CHECK(engine_->trace() != nullptr, "there is no trace to write; call start_trace() first");
  engine_->trace()->write(path);
}

void ShardedModule::begin_forward() {
  engine_->begin_forward();
}

void ShardedModule::end_forward() {
  engine_->end_forward();
}

void ShardedModule::abandon_forward(const char* what) noexcept {
  engine_->abandon_forward(what);
}

}  // namespace fsdp
