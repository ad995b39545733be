// SPDX-License-Identifier: Apache-2.0
// Expert parallelism: each rank holds some experts of a layer, and ranks send each other the tokens
// that the router assigns to those experts.
//
//   const fsdp::DeviceMesh experts(world, {{"edp", 2}, {"ep", 4}});   // of the same ranks
//   layer->experts = register_module("experts", ParallelExperts({...}, experts["ep"]));
//   options.mesh = experts["edp"];
//   auto unit = fsdp::fully_shard(layer->experts, options);   // before the layers around it
//   unit->set_gradient_divide_factor(world->size());
//
// The divisor is the number of ranks that have a loss of their own, as for all other parameters.
// It must be set because only ranks of "edp" reduce an expert's gradient, which is a sum over the
// tokens of all ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "libfsdp/device_mesh.h"
#include "libfsdp/meta_device.h"
#include "libfsdp/placement.h"

namespace fsdp {

struct ParallelExpertsOptions {
  std::int64_t experts = 0;  // of all ranks
  std::int64_t features = 0;
  std::int64_t hidden = 0;
};

// Each expert: y = (silu(x w1^T) * (x w3^T)) w2^T.
// w1, w3: [experts / ranks, hidden, features], w2: [experts / ranks, features, hidden].
class ParallelExpertsImpl : public torch::nn::Module, public PlacedModule, public ResetParameters {
 public:
  // Throws: c10::Error if the experts cannot be divided evenly.
  ParallelExpertsImpl(ParallelExpertsOptions options, const DeviceMesh& mesh);
  PlacedParameter placed(const std::string& name) const override;
  // Draws all experts' values, and keeps this rank's.
  void reset_parameters() override;

  // Collective over the mesh, also for ranks without tokens.  Returns for each token the weighted
  // sum of its experts' results, [T, features].  Waits for the device to learn how many tokens go
  // where.
  // `tokens`: [T, features]; `choices`: [T, K] indices of experts; `weights`: [T, K].
  // Throws: c10::Error for an index without an expert.
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& choices,
                     const at::Tensor& weights);

  const ParallelExpertsOptions options;
  at::Tensor w1;
  at::Tensor w2;
  at::Tensor w3;

 private:
  // Returns the results for `rows`, which are grouped by this rank's experts: `counts` rows each.
  at::Tensor compute(const at::Tensor& rows, const std::vector<std::int64_t>& counts) const;

  const DeviceMesh mesh_;
};
TORCH_MODULE(ParallelExperts);

}  // namespace fsdp
