// SPDX-License-Identifier: Apache-2.0
// Trains one module twice, whole and sharded, every rank on the same data, so that both optimizers
// keep the same for each element.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "libfsdp/fully_sharded.h"
#include "libfsdp/optim_state_dict.h"
#include "tests/libfsdp/models.h"
#include "tests/libfsdp/sharded_case.h"
#include "tests/libfsdp/state/optimizers.h"

namespace fsdp::test {

struct TrainingCase {
  std::string optimizer = "AdamW";
  bool use_orig_params = false;
  ShardingStrategy strategy = ShardingStrategy::kFullShard;
};

inline FsdpOptions options_for(const Group& group, const TrainingCase& test) {
  FsdpOptions options;
  options.process_group = group;
  options.device_id = device_id_of_rank(group->rank());
  options.use_orig_params = test.use_orig_params;
  options.sharding_strategy = test.strategy;
  options.node_size = group->size() % 2 == 0 ? 2 : 1;
  options.auto_wrap_policy = module_wrap_policy<nn::LinearImpl>();
  return options;
}

// Two groups: parameters below "a", and the others.
template <typename Named>
ParamGroups groups_of(const Named& named) {
  std::vector<Tensor> a;
  std::vector<Tensor> others;
  for (const auto& [name, tensor] : named)
    (name.rfind("a.", 0) == 0 ? a : others).push_back(tensor);
  return {torch::optim::OptimizerParamGroup(others), torch::optim::OptimizerParamGroup(a)};
}

inline std::vector<NamedTensor> named(const nn::Module& module) {
  std::vector<NamedTensor> result;
  for (const auto& item : module.named_parameters()) result.emplace_back(item.key(), item.value());
  return result;
}

inline Odd odd_module() {
  Odd module;
  fill_parameters(*module);
  return module;
}

inline Tensor odd_loss(const Tensor& output, int step) {
  const Tensor wanted = random_values({4, 1}, 500 + static_cast<std::uint64_t>(step));
  return (output - wanted.to(output.device())).pow(2).mean();
}
inline Tensor odd_input(int step) {
  return random_values({4, 7}, 100 + static_cast<std::uint64_t>(step));
}

// The whole one.
struct Reference {
  explicit Reference(const std::string& name)
      : module(odd_module()), optimizer(make_optimizer(name, groups_of(named(*module)))) {}

  void train(int first, int last) {
    for (int step = first; step < last; ++step) {
      optimizer->zero_grad();
      odd_loss(module->forward(odd_input(step)), step).backward();
      optimizer->step();
    }
  }
  // By name, without parameters that have a gradient only because of used ones in their unit.
  StateDict state() const {
    StateDict result = rekey_optim_state_dict(
        optimizer_state_dict(*optimizer), OptimStateKeyType::kParamName, *module, optimizer.get());
    result.at("state").dict().erase("spare");
    return result;
  }

  Odd module;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

struct Sharded {
  Sharded(const Group& group, const TrainingCase& test)
      : model(odd_module(), options_for(group, test)),
        optimizer(make_optimizer(test.optimizer, groups_of(model.named_parameters()))) {}

  void train(int first, int last) {
    for (int step = first; step < last; ++step) {
      optimizer->zero_grad();
      odd_loss(model.forward(odd_input(step)), step).backward();
      optimizer->step();
    }
  }

  FullyShardedDataParallel<Odd> model;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

inline void expect_close(const Tensor& found, const Tensor& expected, const std::string& what) {
  ASSERT_EQ(found.sizes(), expected.sizes()) << what;
  EXPECT_EQ(found.scalar_type(), expected.scalar_type()) << what;
  EXPECT_TRUE(torch::allclose(found.cpu(), expected.detach().cpu(), /*rtol=*/1e-5, /*atol=*/2e-6))
      << what << ": off by " << distance(found, expected.detach());
}

// `found` may have state of more parameters.
inline void expect_state(const StateDict& found, const StateDict& expected) {
  for (const auto& [name, entry] : expected.at("state").dict().entries()) {
    const StateDict& values = found.at("state").dict().at(name).dict();
    ASSERT_EQ(values.size(), entry.dict().size()) << text_of(name);
    for (const auto& [key, value] : entry.dict().entries())
      expect_close(*values.at(key).as_tensor(), *value.as_tensor(),
                   text_of(name) + ": " + text_of(key));
  }
}

}  // namespace fsdp::test
