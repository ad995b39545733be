// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <thread>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "libfsdp/meta_device.h"

namespace fsdp::internal {
namespace {

TEST(MetaFactories, every_kind_of_factory_lands_on_the_meta_device) {
  const MetaFactories scope;
  for (const auto& tensor :
       {torch::empty({2, 3}), torch::zeros({2, 3}), torch::ones({2, 3}), torch::full({2, 3}, 4.0),
        torch::rand({2, 3}), torch::randn({2, 3}), torch::randint(5, {2, 3}), torch::arange(6),
        torch::linspace(0, 1, 6), torch::eye(3), torch::tril(torch::ones({3, 3})),
        torch::empty_strided({2, 3}, {1, 2}), torch::empty({2, 3}, torch::kBFloat16),
        torch::zeros({2, 3}, torch::requires_grad())}) {
    EXPECT_TRUE(tensor.is_meta()) << tensor.sizes() << ' ' << tensor.dtype();
  }
  EXPECT_EQ(torch::empty({2, 3}, torch::kBFloat16).dtype(), torch::kBFloat16);
  EXPECT_TRUE(torch::zeros({2, 3}, torch::requires_grad()).requires_grad());
}

TEST(MetaFactories, no_memory_is_taken) {
  const MetaFactories scope;
  const auto tensor = torch::randn({1'000'000, 1'000'000}).mul_(2).add(1);
  EXPECT_EQ(tensor.numel(), 1'000'000'000'000);
  EXPECT_TRUE(tensor.is_meta());
}

TEST(MetaFactories,
     a_device_that_was_asked_for_and_tensors_that_follow_others_stay_where_they_are) {
  const auto before = torch::ones({3});
  const MetaFactories scope;
  EXPECT_TRUE(torch::empty({3}, torch::kCPU).is_cpu());
  EXPECT_TRUE(torch::empty_like(before).is_cpu());
  EXPECT_TRUE(before.new_zeros({4}).is_cpu());
  EXPECT_TRUE(before.to(torch::kFloat64).is_cpu());
  EXPECT_TRUE(torch::equal(before + before, before * 2));
  EXPECT_TRUE(torch::equal(torch::tensor({1.0, 1.0, 1.0}, torch::kFloat), before));
}

TEST(MetaFactories, the_scope_ends_and_nests_and_is_of_its_thread) {
  {
    const MetaFactories scope;
    { const MetaFactories inner; }
    EXPECT_TRUE(torch::empty({1}).is_meta());
    std::optional<bool> other_is_cpu;
    std::thread([&] { other_is_cpu = torch::empty({1}).is_cpu(); }).join();
    EXPECT_EQ(other_is_cpu, true);
  }
  EXPECT_FALSE(meta_factories_active());
  EXPECT_TRUE(torch::empty({1}).is_cpu());
}

TEST(MetaFactories, autograd_records_through_the_scope) {
  auto x = torch::ones({3}, torch::requires_grad());
  const MetaFactories scope;
  (x * x).sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), 2 * x.detach()));
}

}  // namespace
}  // namespace fsdp::internal
