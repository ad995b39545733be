// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/optim/adamw.h"

#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "libfsdp/optim_state_dict.h"
#include "tests/libfsdp/error_of.h"
#include "tests/support/test_device.h"

namespace fsdp::optim {
namespace {

using ::testing::HasSubstr;
using torch::optim::AdamWOptions;
using torch::optim::OptimizerParamGroup;

// Our optimizer and LibTorch's on the same parameters and gradients.
struct Pair {
  explicit Pair(std::vector<at::Tensor> parameters) : expected(std::move(parameters)) {
    for (const auto& parameter : expected) actual.push_back(parameter.clone());
  }

  void set_grads() {
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expected[i].mutable_grad() = torch::randn_like(expected[i]);
      actual[i].mutable_grad() = expected[i].grad().clone();
    }
  }

  void compare(double tolerance = 1e-6) const {
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(torch::allclose(actual[i], expected[i], tolerance, tolerance))
          << i << ": " << (actual[i] - expected[i]).abs().max().item<double>();
    }
  }

  std::vector<at::Tensor> expected;
  std::vector<at::Tensor> actual;
};

std::vector<at::Tensor> parameters() {
  torch::manual_seed(7);
  return {torch::randn({5, 7}), torch::randn({3}), torch::randn({}), torch::randn({0, 4}),
          torch::randn({2, 3, 4, 5}).to(torch::MemoryFormat::ChannelsLast)};
}

TEST(AdamW, steps_as_libtorch_does) {
  for (const bool amsgrad : {false, true}) {
    for (const double weight_decay : {0.0, 0.1}) {
      Pair pair(parameters());
      const auto options = AdamWOptions(3e-2)
                               .amsgrad(amsgrad)
                               .weight_decay(weight_decay)
                               .betas({0.8, 0.95})
                               .eps(1e-7);
      torch::optim::AdamW expected(pair.expected, options);
      AdamW actual(pair.actual, options);
      for (int step = 0; step < 10; ++step) {
        pair.set_grads();
        expected.step();
        actual.step();
        pair.compare();
      }
    }
  }
}

TEST(AdamW, groups_have_their_own_options_and_dtypes_are_stepped_apart) {
  torch::manual_seed(7);
  Pair pair({torch::randn({5, 7}), torch::randn({3}, torch::kDouble), torch::randn({4})});
  const auto groups = [](const std::vector<at::Tensor>& all) {
    std::vector<OptimizerParamGroup> result;
    result.emplace_back(std::vector<at::Tensor>{all[0], all[1]});
    result.emplace_back(std::vector<at::Tensor>{all[2]},
                        std::make_unique<AdamWOptions>(AdamWOptions(0.5).amsgrad(true)));
    return result;
  };
  torch::optim::AdamW expected(groups(pair.expected), AdamWOptions(1e-2));
  AdamW actual(groups(pair.actual), AdamWOptions(1e-2));
  for (int step = 0; step < 5; ++step) {
    pair.set_grads();
    expected.step();
    actual.step();
  }
  pair.compare();
}

TEST(AdamW, parameters_without_gradients_are_left_alone_and_count_their_own_steps) {
  torch::manual_seed(7);
  Pair pair({torch::randn({5}), torch::randn({5})});
  torch::optim::AdamW expected(pair.expected, AdamWOptions(1e-1));
  AdamW actual(pair.actual, AdamWOptions(1e-1));
  for (int step = 0; step < 6; ++step) {
    pair.set_grads();
    if (step % 2 == 0) {
      pair.expected[1].mutable_grad() = at::Tensor();
      pair.actual[1].mutable_grad() = at::Tensor();
    }
    expected.step();
    actual.step();
  }
  pair.compare();
  const auto& state = *actual.state().at(pair.actual[1].unsafeGetTensorImpl());
  EXPECT_EQ(static_cast<const torch::optim::AdamWParamState&>(state).step(), 3);
}

TEST(AdamW, gradients_of_another_dtype_or_layout_are_taken) {
  torch::manual_seed(7);
  Pair pair({torch::randn({4, 6}), torch::randn({4, 6})});
  torch::optim::AdamW expected(pair.expected, AdamWOptions(1e-2));
  AdamW actual(pair.actual, AdamWOptions(1e-2));
  pair.set_grads();
  // As keep_low_precision_grads leaves them; LibTorch's autograd refuses to set such a gradient.
  const auto low = pair.expected[0].grad().to(torch::kBFloat16);
  pair.expected[0].mutable_grad() = low.to(torch::kFloat);
  pair.actual[0].mutable_grad() = low;
  pair.actual[1].mutable_grad() = pair.expected[1].grad().t().contiguous().t();
  expected.step();
  actual.step();
  pair.compare();
}

TEST(AdamW, either_optimizer_goes_on_from_the_archive_of_the_other) {
  Pair pair(parameters());
  torch::optim::AdamW expected(pair.expected, AdamWOptions(1e-2).amsgrad(true));
  AdamW actual(pair.actual, AdamWOptions(1e-2).amsgrad(true));
  for (int step = 0; step < 3; ++step) {
    pair.set_grads();
    expected.step();
    actual.step();
  }
  const auto archived = [](const torch::optim::Optimizer& optimizer) {
    std::stringstream stream;
    torch::save(optimizer, stream);
    return stream;
  };
  auto from_ours = archived(actual);
  auto from_theirs = archived(expected);
  torch::optim::AdamW expected_again(pair.expected, AdamWOptions(0.5));
  AdamW actual_again(pair.actual, AdamWOptions(0.5));
  torch::load(expected_again, from_ours);
  torch::load(actual_again, from_theirs);
  pair.set_grads();
  expected_again.step();
  actual_again.step();
  pair.compare();
}

TEST(AdamW, a_scaled_step_is_the_step_of_unscaled_gradients) {
  Pair pair(parameters());
  AdamW expected(pair.expected, AdamWOptions(1e-2));
  AdamW actual(pair.actual, AdamWOptions(1e-2));
  for (int step = 0; step < 3; ++step) {
    pair.set_grads();
    for (auto& parameter : pair.actual) parameter.mutable_grad().mul_(1024);
    expected.step();
    actual.scale_next_step(torch::full({1}, 1024.0), torch::zeros({1}));
    actual.step();
    pair.compare(0);
  }
  EXPECT_TRUE(torch::equal(pair.actual[0].grad(), pair.expected[0].grad()));
  // Only for the next step.
  pair.set_grads();
  expected.step();
  actual.step();
  pair.compare(0);
}

TEST(AdamW, a_step_with_an_infinity_does_nothing) {
  Pair pair(parameters());
  AdamW optimizer(pair.actual, AdamWOptions(1e-2));
  pair.set_grads();
  optimizer.scale_next_step(torch::full({1}, 1024.0), torch::ones({1}));
  optimizer.step();
  pair.compare(0);
  EXPECT_TRUE(optimizer.state().empty());
}

TEST(AdamW, a_closure_is_called_with_gradients_and_gives_the_loss) {
  auto parameter = torch::ones({3}, torch::requires_grad());
  AdamW optimizer(std::vector<at::Tensor>{parameter}, AdamWOptions(1e-1));
  const auto loss = optimizer.step([&] {
    optimizer.zero_grad();
    auto value = parameter.square().sum();
    value.backward();
    return value;
  });
  EXPECT_EQ(loss.item<float>(), 3);
  EXPECT_LT(parameter.max().item<float>(), 1);
}

TEST(AdamW, a_step_moves_the_version_of_the_parameters) {
  auto parameter = torch::ones({3});
  parameter.mutable_grad() = torch::ones({3});
  AdamW optimizer(std::vector<at::Tensor>{parameter}, AdamWOptions(1e-1));
  const auto before = parameter._version();
  optimizer.step();
  EXPECT_GT(parameter._version(), before);
}

TEST(AdamW, refuses_what_the_kernel_would_get_wrong) {
  auto step = [](at::Tensor parameter, const at::Tensor& grad) {
    parameter.mutable_grad() = grad;
    AdamW optimizer(std::vector<at::Tensor>{parameter}, AdamWOptions(1e-1));
    return error_of([&] { optimizer.step(); });
  };
  EXPECT_THAT(step(torch::ones({3}), torch::ones({3}).to_sparse()),
              HasSubstr("does not support sparse gradients"));
  EXPECT_THAT(step(torch::ones({3}, torch::kComplexFloat), torch::ones({3}, torch::kComplexFloat)),
              HasSubstr("expected floating-point parameters, found ComplexFloat"));
  EXPECT_THAT(step(torch::ones({6}).slice(0, 0, 6, 2), torch::ones({3})),
              HasSubstr("dense in memory"));
  EXPECT_THAT(error_of([] { AdamW(parameters(), AdamWOptions(-1)); }),
              HasSubstr("Invalid learning rate"));
}

// ---- steps in graphs: optim/captured_adamw_test.cpp captures and replays them

// On the device that the tests run on.
std::vector<at::Tensor> device_parameters() {
  std::vector<at::Tensor> result = parameters();
  for (at::Tensor& parameter : result) parameter = parameter.to(test::device_of_rank(0));
  return result;
}

std::int64_t step_of(const AdamW& optimizer, const at::Tensor& parameter) {
  return static_cast<const torch::optim::AdamWParamState&>(
             *optimizer.state().at(parameter.unsafeGetTensorImpl()))
      .step();
}

std::stringstream archive_of(const torch::optim::Optimizer& optimizer) {
  std::stringstream result;
  torch::save(optimizer, result);
  return result;
}

TEST(CapturableAdamW, steps_are_the_same_bit_by_bit) {
  for (const bool amsgrad : {false, true}) {
    for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kBFloat16}) {
      std::vector<at::Tensor> all = device_parameters();
      for (at::Tensor& parameter : all) parameter = parameter.to(dtype);
      Pair pair(all);
      const auto options = AdamWOptions(3e-2).amsgrad(amsgrad).betas({0.8, 0.95});
      AdamW expected(pair.expected, options);
      AdamW actual(pair.actual, options);
      actual.capturable();
      for (int step = 0; step < 10; ++step) {
        pair.set_grads();
        // One parameter counts fewer steps.
        if (step % 3 == 0)
          pair.expected[1].mutable_grad() = pair.actual[1].mutable_grad() = at::Tensor();
        expected.step();
        actual.step();
        pair.compare(0);
      }
      actual.refresh_steps();
      for (std::size_t i = 0; i < pair.actual.size(); ++i)
        EXPECT_EQ(step_of(actual, pair.actual[i]), step_of(expected, pair.expected[i])) << i;
    }
  }
}

TEST(CapturableAdamW, may_be_turned_on_and_off_between_steps) {
  Pair pair(device_parameters());
  AdamW expected(pair.expected, AdamWOptions(1e-2));
  AdamW actual(pair.actual, AdamWOptions(1e-2));
  for (int step = 0; step < 9; ++step) {
    pair.set_grads();
    actual.capturable(step / 3 % 2 == 1);
    expected.step();
    actual.step();
    pair.compare(0);
  }
  EXPECT_FALSE(actual.is_capturable());
  EXPECT_EQ(step_of(actual, pair.actual[0]), 9);
}

TEST(CapturableAdamW, the_learning_rate_on_the_device_is_the_rounded_one) {
  Pair pair(device_parameters());
  const auto rounded = [](double lr) { return static_cast<double>(static_cast<float>(lr)); };
  AdamW expected(pair.expected, AdamWOptions(rounded(0.1)));
  AdamW actual(pair.actual, AdamWOptions(0.1));
  actual.capturable().lr_on_device();
  for (int step = 1; step <= 6; ++step) {
    pair.set_grads();
    expected.param_groups()[0].options().set_lr(rounded(0.1 / step));
    actual.param_groups()[0].options().set_lr(0.1 / step);
    actual.upload_lr();
    expected.step();
    actual.step();
    pair.compare(0);
  }
}

TEST(CapturableAdamW, a_learning_rate_that_was_not_uploaded_is_refused) {
  Pair pair(device_parameters());
  AdamW optimizer(pair.actual, AdamWOptions(0.5));
  EXPECT_THAT(error_of([&] { optimizer.lr_on_device(); }), HasSubstr("expected capturable()"));
  optimizer.capturable().lr_on_device();
  pair.set_grads();
  optimizer.step();
  optimizer.param_groups()[0].options().set_lr(0.25);
  EXPECT_THAT(error_of([&] { optimizer.step(); }),
              HasSubstr("the learning rate of group 0 is 0.25, but 0.5 on the device: call "
                        "upload_lr()"));
  optimizer.upload_lr();
  optimizer.step();
}

TEST(CapturableAdamW, scaled_steps_are_those_of_unscaled_gradients) {
  Pair pair(device_parameters());
  AdamW expected(pair.expected, AdamWOptions(1e-2));
  AdamW actual(pair.actual, AdamWOptions(1e-2));
  actual.capturable();
  const auto on_device = torch::TensorOptions().device(test::device_of_rank(0));
  for (const double infinities : {0.0, 0.0, 1.0, 2.0, 0.0}) {
    pair.set_grads();
    for (auto& parameter : pair.actual) parameter.mutable_grad().mul_(1024);
    if (infinities == 0) expected.step();
    actual.scale_next_step(torch::full({1}, 1024.0, on_device),
                           torch::full({1}, infinities, on_device));
    actual.step();
    pair.compare(0);
  }
  actual.refresh_steps();
  for (std::size_t i = 0; i < pair.actual.size(); ++i)
    EXPECT_EQ(step_of(actual, pair.actual[i]), 3) << i;
}

TEST(CapturableAdamW, archives_have_the_count_and_either_kind_goes_on) {
  Pair pair(device_parameters());
  AdamW plain(pair.expected, AdamWOptions(1e-2).amsgrad(true));
  AdamW capturable(pair.actual, AdamWOptions(1e-2).amsgrad(true));
  capturable.capturable();
  for (int step = 0; step < 3; ++step) {
    pair.set_grads();
    plain.step();
    capturable.step();
  }
  auto from_capturable = archive_of(capturable);
  auto from_plain = archive_of(plain);
  AdamW plain_again(pair.expected, AdamWOptions(0.5));
  AdamW capturable_again(pair.actual, AdamWOptions(0.5));
  capturable_again.capturable();
  torch::load(plain_again, from_capturable);
  torch::load(capturable_again, from_plain);
  EXPECT_EQ(step_of(plain_again, pair.expected[0]), 3);
  pair.set_grads();
  plain_again.step();
  capturable_again.step();
  pair.compare(0);
}

TEST(CapturableAdamW, state_dicts_have_the_count) {
  Pair pair(device_parameters());
  AdamW optimizer(pair.actual, AdamWOptions(1e-2));
  optimizer.capturable();
  for (int step = 0; step < 4; ++step) {
    pair.set_grads();
    optimizer.step();
  }
  const StateDict dict = optimizer_state_dict(optimizer);
  for (const auto& [id, state] : dict.at("state").dict().entries())
    EXPECT_EQ(state.dict().at("step").as_tensor()->item<float>(), 4);
  // A loaded state is counted on the device from then on.
  AdamW other(pair.actual, AdamWOptions(1e-2));
  other.capturable();
  load_optimizer_state_dict(other, dict);
  other.step();
  other.refresh_steps();
  EXPECT_EQ(step_of(other, pair.actual[0]), 5);
}

}  // namespace
}  // namespace fsdp::optim
