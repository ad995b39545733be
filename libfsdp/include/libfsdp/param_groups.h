// SPDX-License-Identifier: Apache-2.0
// Parameter groups of an optimizer over shards.
//
// A shard may have fewer dimensions than its parameter, or other ones: a weight [2, 5, 13] on three
// ranks is [N] on each.  So code that chooses by dim() must ask for the shape in the module.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace fsdp {

class ShardedModule;

// Returns the shape that the parameter has in the unsharded module, for a tensor of
// ShardedModule::parameters(); for any other tensor its own shape.
// Throws: c10::Error for a flat tensor, which holds several parameters.
std::vector<std::int64_t> original_shape(const at::Tensor& tensor);

// The parameters of a module, divided by their number of dimensions in the module.
struct DecayGroups {
  std::vector<at::Tensor> decayed;      // of two dimensions or more: weights of layers, embeddings
  std::vector<at::Tensor> not_decayed;  // biases, scales of norms
};

// Throws: c10::Error if use_orig_params is false.
DecayGroups decay_groups(const ShardedModule& module);

// Returns the usual two groups for an optimizer: what is not decayed gets a weight_decay of 0.
//   fsdp::optim::AdamW optimizer(fsdp::param_groups(sharded, AdamWOptions(1e-3).weight_decay(0.1)),
//                                AdamWOptions(1e-3));
// Throws: c10::Error if use_orig_params is false.
template <typename Options>
std::vector<torch::optim::OptimizerParamGroup> param_groups(const ShardedModule& module,
                                                            const Options& options) {
  DecayGroups groups = decay_groups(module);
  auto without = options;
  without.weight_decay(0);
  std::vector<torch::optim::OptimizerParamGroup> result;
  result.emplace_back(std::move(groups.decayed), std::make_unique<Options>(options));
  result.emplace_back(std::move(groups.not_decayed), std::make_unique<Options>(without));
  return result;
}

}  // namespace fsdp
