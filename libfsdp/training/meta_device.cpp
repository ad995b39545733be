// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/meta_device.h"

#include <mutex>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/variable.h>

#include "libfsdp/internal/construction/materialization.h"

namespace fsdp {
namespace {

namespace nn = torch::nn;

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
