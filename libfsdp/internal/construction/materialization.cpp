// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/construction/materialization.h"

#include <cstdint>
#include <string>
#include <unordered_set>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/modules.h>

#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/meta_device.h"

namespace fsdp::internal {
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

// Returns whether the module, when it initializes itself, writes parameters of modules below it.
bool initializes_others(nn::Module& module) {
  return dynamic_cast<nn::TransformerImpl*>(&module) != nullptr ||
         dynamic_cast<nn::MultiheadAttentionImpl*>(&module) != nullptr ||
         dynamic_cast<nn::AdaptiveLogSoftmaxWithLossImpl*>(&module) != nullptr;
}

class Materializer {
 public:
  explicit Materializer(const Materialization& how)
      : how_(how), done_(how.ignored.begin(), how.ignored.end()) {}

  // Returns whether anything at or below the module was initialized.
  bool run(nn::Module& module, const std::string& path) {
    if (!done_.insert(&module).second) return false;
    const bool holds = !how_.param_init_fn && initializes_others(module);
    if (holds) ++holders_;
    bool initialized = false;
    for (const auto& child : module.named_children()) {
      const auto name = path.empty() ? child.key() : path + '.' + child.key();
      initialized |= run(*child.value(), name);
    }
    auto tensors = own_meta_tensors(module);
    if (!tensors.empty()) {
      initialized = true;
      if (how_.param_init_fn) {
        initialize_by_function(module, path);
      } else if (!how_.with_values) {
        to_empty(module, how_.device, /*recurse=*/false);
      } else {
        initialize_by_reset(module, path, std::move(tensors));
      }
    }
    // A TransformerImpl has no parameters of its own, but initializes those below it in its own
    // way.
    if (initialized && how_.with_values && !how_.param_init_fn)
      reset_as<nn::TransformerImpl>(module);
    if (holds) --holders_;
    held_.push_back(&module);
    if (holders_ == 0) {
      for (nn::Module* const held : std::exchange(held_, {})) how_.done(*held);
    }
    return initialized;
  }

 private:
  void initialize_by_function(nn::Module& module, const std::string& path) const {
    how_.param_init_fn(module);
    const auto left = own_meta_tensors(module);
    FSDP_CHECK(left.empty(), "param_init_fn: expected no meta tensors after it ran, found '",
               left.empty() ? "" : left.front().name, "' of ", described(module, path),
               ": give it memory by fsdp::to_empty(module, device, false) and then values");
  }

  void initialize_by_reset(nn::Module& module, const std::string& path,
                           std::vector<OwnTensor> tensors) const {
    to_empty(module, how_.device, /*recurse=*/false);
    std::vector<std::int64_t> versions;
    for (const auto& own : tensors) versions.push_back(own.tensor._version());
    FSDP_CHECK(reset(module),
               "meta device: expected a module of torch::nn, or one that derives "
               "from fsdp::ResetParameters, found ",
               described(module, path), " with '", tensors.front().name,
               "': set FsdpOptions::param_init_fn to initialize it");
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      auto& tensor = tensors[i].tensor;
      if (tensor._version() != versions[i]) continue;
      // After `head->weight = embedding->weight` only the registry still has head's first weight,
      // which only state dicts read.
      const bool is_only_registered =
          tensor.use_count() == 2 + static_cast<std::size_t>(how_.kept(tensor));
      FSDP_CHECK(is_only_registered, "meta device: expected reset_parameters() of ",
                 described(module, path), " to write '", tensors[i].name,
                 "', found it untouched: set FsdpOptions::param_init_fn to initialize it");
      const at::NoGradGuard no_grad;
      tensor.zero_();
    }
  }

  const Materialization& how_;
  std::unordered_set<const nn::Module*> done_;
  int holders_ = 0;                // modules around this one that initialize what is below them
  std::vector<nn::Module*> held_;  // done as soon as `holders_` is 0
};

}  // namespace

void run(const Materialization& materialization, nn::Module& root) {
  FSDP_CHECK(!meta_factories_active(),
             "meta device: expected the MetaDevice scope to have ended before the module is "
             "sharded or materialized, found it open: tensors made from now on need memory");
  Materializer(materialization).run(root, "");
}

}  // namespace fsdp::internal
