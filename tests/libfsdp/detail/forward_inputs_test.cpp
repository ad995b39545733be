// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/detail/forward_inputs.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace fsdp::internal {
namespace {

const InputCast kHalf{.device = std::nullopt, .dtype = torch::kBFloat16};

TEST(ForwardInputs, floating_tensors_are_cast_and_others_stay) {
  EXPECT_EQ(prepared(torch::ones({2}), kHalf).scalar_type(), torch::kBFloat16);
  EXPECT_EQ(prepared(torch::ones({2}, torch::kLong), kHalf).scalar_type(), torch::kLong);
  EXPECT_EQ(prepared(3, kHalf), 3);
  EXPECT_FALSE(prepared(at::Tensor(), kHalf).defined());
}

TEST(ForwardInputs, tensors_inside_containers_are_cast) {
  using Pair = std::pair<at::Tensor, int>;
  const std::vector<std::optional<at::Tensor>> list{torch::ones({1}), std::nullopt};
  const auto lists = prepared(list, kHalf);
  EXPECT_EQ(lists[0]->scalar_type(), torch::kBFloat16);
  EXPECT_FALSE(lists[1]);
  const auto tuple = prepared(std::make_tuple(Pair(torch::ones({1}), 4), std::string("x")), kHalf);
  EXPECT_EQ(std::get<0>(tuple).first.scalar_type(), torch::kBFloat16);
  EXPECT_EQ(std::get<0>(tuple).second, 4);
  const auto map = prepared(std::map<std::string, at::Tensor>{{"a", torch::ones({1})}}, kHalf);
  EXPECT_EQ(map.at("a").scalar_type(), torch::kBFloat16);
}

TEST(ForwardInputs, gradients_pass_through_the_cast) {
  const auto input = torch::ones({2}).requires_grad_(true);
  prepared(input, kHalf).sum().backward();
  EXPECT_TRUE(torch::equal(input.grad(), torch::ones({2})));
}

TEST(ForwardInputs, a_module_holder_and_a_module_are_the_same) {
  static_assert(std::is_same_v<ImplOf<torch::nn::Linear>::type, torch::nn::LinearImpl>);
  static_assert(std::is_same_v<ImplOf<torch::nn::LinearImpl>::type, torch::nn::LinearImpl>);
}

}  // namespace
}  // namespace fsdp::internal
