// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/meta_device.h"

#include <algorithm>
#include <cstddef>
#include <mutex>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/variable.h>

#include "libfsdp/internal/construction/materialization.h"
#include "libfsdp/internal/engine/observer.h"

namespace fsdp {
namespace {

namespace nn = torch::nn;

thread_local int open_meta_scopes = 0;

// Tensor::set_data() refuses to change from the meta device to another one.  This does what
// set_data() does otherwise: takes the other tensor's metadata and storage, and drops a gradient
// accumulator that was made for the old device.
void give_memory(const at::Tensor& tensor, c10::Device device) {
  const c10::InferenceMode no_inference(false);
  const at::NoGradGuard no_grad;
  const auto memory = at::empty_like(tensor, tensor.options().device(device));
  tensor.unsafeGetTensorImpl()->shallow_copy_from(memory.getIntrusivePtr());
  if (auto* meta = torch::autograd::impl::get_autograd_meta(tensor)) {
    const std::lock_guard lock(meta->mutex_);
    meta->grad_accumulator_.reset();
    meta->grad_ = at::Tensor();
  }
}

}  // namespace

namespace internal {

MetaFactories::MetaFactories() : include_key_(interception_key()) {
  ++open_meta_scopes;
}

MetaFactories::~MetaFactories() {
  --open_meta_scopes;
}

bool meta_factories_active() noexcept {
  return open_meta_scopes > 0;
}

void send_factory_to_meta(const c10::FunctionSchema& schema, torch::jit::Stack& stack) {
  const auto& arguments = schema.arguments();
  const auto device =
      std::find_if(arguments.begin(), arguments.end(),
                   [](const c10::Argument& argument) { return argument.name() == "device"; });
  if (device == arguments.end()) return;
  const auto values = torch::jit::last(stack, arguments.size());
  const auto holds_tensor = [](const c10::IValue& value) {
    return value.isTensor() || value.isTensorList();
  };
  if (std::any_of(values.begin(), values.end(), holds_tensor)) return;
  const auto index = static_cast<std::size_t>(device - arguments.begin());
  c10::IValue& value = stack[stack.size() - arguments.size() + index];
  if (value.isNone()) value = c10::Device(c10::kMeta);
}

}  // namespace internal

void to_empty(nn::Module& module, c10::Device device, bool recurse) {
  for (const auto& named :
       {module.named_parameters(/*recurse=*/false), module.named_buffers(/*recurse=*/false)}) {
    for (const auto& item : named) {
      if (item.value().defined() && item.value().is_meta()) give_memory(item.value(), device);
    }
  }
  if (!recurse) return;
  for (const auto& child : module.children()) to_empty(*child, device);
}

void materialize(nn::Module& root, c10::Device device,
                 const std::function<void(nn::Module&)>& param_init_fn,
                 const std::vector<const nn::Module*>& ignored) {
  internal::Materialization how;
  how.device = device;
  how.param_init_fn = param_init_fn;
  how.ignored = ignored;
  internal::run(how, root);
}

}  // namespace fsdp
