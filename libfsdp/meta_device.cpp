// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/meta_device.h"

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules.h>

namespace fsdp {
namespace {

namespace nn = torch::nn;

struct OwnTensor {
  std::string name;
  at::Tensor tensor;
};

// Returns the meta tensors that are registered in the module itself.
std::vector<OwnTensor> own_meta_tensors(const nn::Module& module) {
  std::vector<OwnTensor> result;
  const auto add = [&](const auto& named) {
    for (const auto& item : named) {
      if (item.value().defined() && item.value().is_meta()) {
        result.push_back({item.key(), item.value()});
      }
    }
  };
  add(module.named_parameters(/*recurse=*/false));
  add(module.named_buffers(/*recurse=*/false));
  return result;
}

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

template <typename M>
bool reset_as(nn::Module& module) {
  auto* typed = dynamic_cast<M*>(&module);
  if (typed == nullptr) return false;
  if constexpr (requires { typed->reset_parameters(); }) {
    typed->reset_parameters();
  } else if constexpr (requires { typed->_reset_parameters(); }) {
    typed->_reset_parameters();
  } else {
    const at::NoGradGuard no_grad;
    typed->weight.fill_(typed->options.init());
  }
  return true;
}

template <typename... M>
bool reset_as_one_of(nn::Module& module) {
  return (... || reset_as<M>(module));
}

bool reset(nn::Module& module) {
  return reset_as_one_of<
      ResetParameters, nn::LinearImpl, nn::BilinearImpl, nn::EmbeddingImpl, nn::EmbeddingBagImpl,
      nn::LayerNormImpl, nn::GroupNormImpl, nn::BatchNorm1dImpl, nn::BatchNorm2dImpl,
      nn::BatchNorm3dImpl, nn::InstanceNorm1dImpl, nn::InstanceNorm2dImpl, nn::InstanceNorm3dImpl,
      nn::Conv1dImpl, nn::Conv2dImpl, nn::Conv3dImpl, nn::ConvTranspose1dImpl,
      nn::ConvTranspose2dImpl, nn::ConvTranspose3dImpl, nn::PReLUImpl, nn::RNNImpl, nn::LSTMImpl,
      nn::GRUImpl, nn::RNNCellImpl, nn::LSTMCellImpl, nn::GRUCellImpl, nn::MultiheadAttentionImpl>(
      module);
}

std::string described(const nn::Module& module, const std::string& path) {
  return path.empty() ? "the module (" + module.name() + ")"
                      : "module '" + path + "' (" + module.name() + ")";
}

class Materializer {
 public:
  Materializer(c10::Device device, const std::function<void(nn::Module&)>& param_init_fn,
               const std::vector<const nn::Module*>& ignored)
      : device_(device), param_init_fn_(param_init_fn), done_(ignored.begin(), ignored.end()) {}

  // Returns whether anything at or below the module was initialized.
  bool run(nn::Module& module, const std::string& path) {
    if (!done_.insert(&module).second) return false;
    bool initialized = false;
    for (const auto& child : module.named_children()) {
      const auto name = path.empty() ? child.key() : path + '.' + child.key();
      initialized |= run(*child.value(), name);
    }
    auto tensors = own_meta_tensors(module);
    if (!tensors.empty()) {
      initialized = true;
      if (param_init_fn_) {
        initialize_by_function(module, path);
      } else {
        initialize_by_reset(module, path, std::move(tensors));
      }
    }
    // It has no parameters of its own, but initializes those below it in its own way.
    if (initialized && !param_init_fn_) reset_as<nn::TransformerImpl>(module);
    return initialized;
  }

 private:
  void initialize_by_function(nn::Module& module, const std::string& path) const {
    param_init_fn_(module);
    const auto left = own_meta_tensors(module);
    TORCH_CHECK(left.empty(), "param_init_fn: expected no meta tensors after it ran, found '",
                left.empty() ? "" : left.front().name, "' of ", described(module, path),
                ": give it memory by fsdp::to_empty(module, device, false) and then values");
  }

  void initialize_by_reset(nn::Module& module, const std::string& path,
                           std::vector<OwnTensor> tensors) const {
    to_empty(module, device_, /*recurse=*/false);
    std::vector<std::int64_t> versions;
    for (const auto& own : tensors) versions.push_back(own.tensor._version());
    TORCH_CHECK(reset(module),
                "meta device: expected a module of torch::nn, or one that derives "
                "from fsdp::ResetParameters, found ",
                described(module, path), " with '", tensors.front().name,
                "': set FsdpOptions::param_init_fn to initialize it");
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      auto& tensor = tensors[i].tensor;
      if (tensor._version() != versions[i]) continue;
      // After `head->weight = embedding->weight` only the registry still has head's first weight.
      // Only state dicts read it.
      const bool is_only_registered = tensor.use_count() == 2;
      TORCH_CHECK(is_only_registered, "meta device: expected reset_parameters() of ",
                  described(module, path), " to write '", tensors[i].name,
                  "', found it untouched: set FsdpOptions::param_init_fn to initialize it");
      const at::NoGradGuard no_grad;
      tensor.zero_();
    }
  }

  const c10::Device device_;
  const std::function<void(nn::Module&)>& param_init_fn_;
  std::unordered_set<const nn::Module*> done_;
};

}  // namespace

void to_empty(nn::Module& module, c10::Device device, bool recurse) {
  for (const auto& own : own_meta_tensors(module)) give_memory(own.tensor, device);
  if (!recurse) return;
  for (const auto& child : module.children()) to_empty(*child, device);
}

void materialize(nn::Module& root, c10::Device device,
                 const std::function<void(nn::Module&)>& param_init_fn,
                 const std::vector<const nn::Module*>& ignored) {
  TORCH_CHECK(
      !internal::meta_factories_active(),
      "meta device: expected the MetaDevice scope to have ended before the module is sharded "
      "or materialized, found it open: what is made from now on needs memory");
  Materializer(device, param_init_fn, ignored).run(root, "");
}

}  // namespace fsdp
