// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/unit_call.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

// As a program has it.
struct Batch {
  at::Tensor tokens;
  std::vector<at::Tensor> masks;
  int length = 0;
};
template <>
struct fsdp::TensorTree<Batch> : fsdp::TensorFields<&Batch::tokens, &Batch::masks> {};

namespace fsdp::internal {
namespace {

template <typename T>
T prepared(T value, const InputCast& cast) {
  PreparedTensors().prepare(value, cast);
  return value;
}

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

TEST(ForwardInputs, batches_of_other_kinds_are_cast) {
  const auto array = prepared(std::array<at::Tensor, 2>{torch::ones({1}), torch::ones({1})}, kHalf);
  EXPECT_EQ(array[1].scalar_type(), torch::kBFloat16);
  const auto example = prepared(torch::data::Example<>(torch::ones({1}), torch::ones({2})), kHalf);
  EXPECT_EQ(example.target.scalar_type(), torch::kBFloat16);
  const auto alone = prepared(torch::data::TensorExample(torch::ones({1})), kHalf);
  EXPECT_EQ(alone.data.scalar_type(), torch::kBFloat16);
  const std::vector<c10::List<at::Tensor>> lists{c10::List<at::Tensor>({torch::ones({1})})};
  EXPECT_EQ(prepared(lists, kHalf)[0].get(0).scalar_type(), torch::kBFloat16);
  EXPECT_EQ(lists[0].get(0).scalar_type(), torch::kFloat) << "the caller's own";
  const Batch batch = prepared(Batch{torch::ones({1}), {torch::ones({1})}, 7}, kHalf);
  EXPECT_EQ(batch.tokens.scalar_type(), torch::kBFloat16);
  EXPECT_EQ(batch.masks[0].scalar_type(), torch::kBFloat16);
  EXPECT_EQ(batch.length, 7);
}

TEST(ForwardInputs, the_caller_gets_what_the_module_wrote_and_keeps_the_rest_as_it_was) {
  Batch batch{torch::ones({1}), {torch::ones({1}), torch::ones({2})}, 7};
  const at::Tensor* const first = batch.masks.data();
  const Batch before = batch;
  {
    ForwardArgument<Batch&> argument(batch, kHalf);
    Batch& inside = argument.get();
    EXPECT_EQ(inside.tokens.scalar_type(), torch::kBFloat16);
    inside.length = 8;
    inside.masks[1] = inside.tokens;
    inside.tokens = torch::zeros({3});
    argument.give_back();
  }
  EXPECT_EQ(batch.length, 8);
  EXPECT_EQ(batch.tokens.sizes(), at::IntArrayRef({3}));
  EXPECT_TRUE(batch.masks[0].is_same(before.masks[0]));
  EXPECT_TRUE(batch.masks[1].is_same(before.tokens));
  EXPECT_EQ(batch.masks.data(), first);
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
