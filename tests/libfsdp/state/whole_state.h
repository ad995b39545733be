// SPDX-License-Identifier: Apache-2.0
// Modules, their options, and their whole state.
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "libfsdp/fully_sharded.h"
#include "tests/libfsdp/sharded_case.h"

namespace fsdp::test {

inline constexpr ShardingStrategy kStrategies[] = {
    ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard,
    ShardingStrategy::kHybridShard, ShardingStrategy::kHybridShardZero2};

inline FsdpOptions options_for(const Group& group, bool use_orig_params = false) {
  FsdpOptions options;
  options.process_group = group;
  options.device_id = device_id_of_rank(group->rank());
  options.use_orig_params = use_orig_params;
  options.node_size = group->size() % 2 == 0 ? 2 : 1;
  options.auto_wrap_policy = size_based_auto_wrap_policy(20);
  return options;
}

template <typename Holder>
Holder filled() {
  Holder module;
  fill_parameters(*module);
  return module;
}

inline std::vector<std::string> keys_of(const StateDict& dict) {
  std::vector<std::string> keys;
  for (const auto& item : dict.entries()) keys.push_back(text_of(item.first));
  return keys;
}

// Both whole; compares bit by bit.
inline void expect_same(const StateDict& found, torch::nn::Module& module) {
  std::size_t count = 0;
  for (const auto& tensors : {module.named_parameters(), module.named_buffers()}) {
    for (const auto& item : tensors) {
      ++count;
      const StateValue* const value = found.find(item.key());
      ASSERT_NE(value, nullptr) << item.key();
      ASSERT_NE(value->as_tensor(), nullptr) << item.key();
      EXPECT_TRUE(torch::equal(*value->as_tensor(), item.value().detach())) << item.key();
      EXPECT_EQ(value->as_tensor()->scalar_type(), item.value().scalar_type()) << item.key();
      EXPECT_FALSE(value->as_tensor()->requires_grad()) << item.key();
    }
  }
  EXPECT_EQ(found.size(), count);
}

// Returns another state for every parameter and buffer, by name.
inline StateDict changed_state(const torch::nn::Module& module) {
  StateDict result;
  std::uint64_t seed = 1000;
  for (const auto& tensors : {module.named_parameters(), module.named_buffers()}) {
    for (const auto& item : tensors) {
      const double scale = item.value().is_floating_point() ? 0.5 : 40;
      const torch::Tensor values = random_values(item.value().sizes().vec(), seed++) * scale;
      result.set(item.key(), values.to(item.value().scalar_type()));
    }
  }
  return result;
}

}  // namespace fsdp::test
