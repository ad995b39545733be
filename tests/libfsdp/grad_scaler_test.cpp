// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/grad_scaler.h"

#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/libfsdp/error_of.h"
#include "tests/support/spawn_ranks.h"
#include "tests/support/test_device.h"

namespace fsdp {
namespace {

using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

at::Tensor with_grad(const at::Tensor& grad) {
  auto parameter = torch::zeros(grad.sizes(), grad.options().layout(torch::kStrided));
  parameter.mutable_grad() = grad;
  return parameter;
}

struct Sgd : torch::optim::SGD {
  explicit Sgd(std::vector<at::Tensor> parameters) : SGD(std::move(parameters), 1.0) {}
};

const std::vector<at::Tensor>& first_group(const torch::optim::Optimizer& optimizer) {
  return optimizer.param_groups()[0].params();
}

TEST(GradScaler, decides_as_pytorch_does) {
  std::ifstream file(FSDP_TEST_GRAD_SCALER_CASES);
  int iterations = 0;
  std::unique_ptr<GradScaler> scaler;
  at::Tensor parameter;
  std::unique_ptr<torch::optim::SGD> optimizer;
  int iteration = 0;
  for (std::string line; std::getline(file, line);) {
    SCOPED_TRACE(line);
    std::istringstream words(line);
    std::string first;
    words >> first;
    if (first == "case") {
      GradScalerOptions options;
      words >> options.init_scale >> options.growth_factor >> options.backoff_factor >>
          options.growth_interval;
      scaler = std::make_unique<GradScaler>(options);
      parameter = torch::ones({1}, torch::requires_grad());
      optimizer = std::make_unique<torch::optim::SGD>(std::vector<at::Tensor>{parameter}, 0.5);
      iteration = 0;
      continue;
    }
    optimizer->zero_grad();
    scaler->scale((parameter * std::stod(first)).sum()).backward();
    if (iteration % 2 == 1) scaler->unscale_(*optimizer);
    const bool stepped = scaler->step(*optimizer);
    if (iteration % 5 == 4) {
      scaler->update(1024.0);
    } else {
      scaler->update();
    }
    bool expected_step = false;
    double value = 0;
    GradScalerState state;
    words >> expected_step >> value >> state.scale >> state.growth_tracker;
    EXPECT_EQ(stepped, expected_step);
    EXPECT_EQ(parameter.item<float>(), static_cast<float>(value));
    EXPECT_EQ(scaler->get_scale(), state.scale);
    EXPECT_EQ(scaler->state().growth_tracker, state.growth_tracker);
    ++iteration;
    ++iterations;
  }
  EXPECT_EQ(iterations, 240);
}

TEST(GradScaler, an_infinity_on_one_rank_makes_all_skip) {
  for (const int world_size : {1, 2, 3, 4}) {
    test::spawn_ranks(world_size, [&](const std::shared_ptr<ProcessGroup>& group) {
      GradScaler scaler({.init_scale = 8, .growth_interval = 1, .process_group = group});
      const c10::Device device = test::device_of_rank(group->rank());
      scaler.scale(torch::ones({}, device));
      const bool is_last = group->rank() == group->size() - 1;
      for (const bool bad : {false, true, false}) {
        // The last rank has a gradient that is not finite; rank 0 may have no gradient.
        std::vector<at::Tensor> parameters{torch::zeros({2}, device)};
        if (is_last || group->rank() != 0) {
          parameters = {with_grad(torch::full({2}, bad && is_last ? kInfinity : 16.0F, device))};
        }
        Sgd optimizer(parameters);
        EXPECT_EQ(scaler.step(optimizer), !bad);
        if (parameters[0].grad().defined()) {
          EXPECT_EQ(parameters[0].max().item<float>() == 0, bad);
        }
        scaler.update();
      }
      EXPECT_EQ(scaler.get_scale(), 16);  // 8, up, down, up
    });
  }
}

TEST(GradScaler, a_rank_without_a_loss_takes_the_device_of_the_group) {
  test::spawn_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    GradScaler scaler({.init_scale = 8, .process_group = group});
    const c10::Device device = test::device_of_rank(group->rank());
    // Nothing was scaled, and rank 0 has no gradient either.
    std::vector<at::Tensor> parameters{torch::zeros({2}, device)};
    if (group->rank() == 1) parameters = {with_grad(torch::full({2}, kInfinity, device))};
    Sgd optimizer(parameters);
    TORCH_CHECK(!scaler.step(optimizer));
    scaler.update();
    TORCH_CHECK(scaler.get_scale() == 4);
  });
}

TEST(GradScaler, unscales_every_dtype_and_sparse_gradients) {
  GradScaler scaler({.init_scale = 4});
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16}) {
    Sgd optimizer({with_grad(torch::full({3}, 8.0, dtype)), with_grad(torch::ones({}, dtype))});
    EXPECT_TRUE(scaler.step(optimizer));
    EXPECT_TRUE(torch::equal(first_group(optimizer)[0].grad(), torch::full({3}, 2.0, dtype)));
    EXPECT_EQ(first_group(optimizer)[1].grad().item<float>(), 0.25);
    scaler.update();
  }
  // Both rows are 40000 in float16, but their sum overflows: infinite only after the addition.
  const auto indices = torch::tensor({{1, 1}});
  const auto sparse = [&](double value) {
    return torch::sparse_coo_tensor(indices, torch::full({2}, value, torch::kHalf), {3});
  };
  for (const double value : {40000.0, 4.0}) {
    auto parameter = torch::zeros({3}, torch::kHalf);
    parameter.mutable_grad() = sparse(value);
    Sgd optimizer({parameter});
    scaler.unscale_(optimizer);
    if (value == 4.0) {
      EXPECT_TRUE(torch::equal(parameter.grad().to_dense().to(torch::kFloat),
                               torch::tensor({0.0F, 4.0F, 0.0F})));
    }
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), 2.0);
  }
}

TEST(GradScaler, a_loss_keeps_its_dtype) {
  GradScaler scaler({.init_scale = 16});
  const auto loss = torch::ones({}, torch::kHalf);
  EXPECT_EQ(scaler.scale(loss).scalar_type(), torch::kHalf);
  EXPECT_EQ(scaler.scale(loss).item<float>(), 16);
}

TEST(GradScaler, several_optimizers_each_decide_and_one_infinity_lowers_the_scale) {
  GradScaler scaler({.init_scale = 4});
  Sgd fine({with_grad(torch::ones({1}))});
  Sgd broken({with_grad(torch::full({1}, kInfinity))});
  EXPECT_TRUE(scaler.step(fine));
  EXPECT_FALSE(scaler.step(broken));
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 2);
}

TEST(GradScaler, state_goes_on_in_another_scaler) {
  GradScaler first({.init_scale = 4, .growth_interval = 2});
  Sgd optimizer({with_grad(torch::ones({1}))});
  first.step(optimizer);
  first.update();
  GradScaler second;
  second.load_state(first.state());
  EXPECT_EQ(second.state().growth_tracker, 1);
  second.step(optimizer);
  second.update();
  EXPECT_EQ(second.get_scale(), 8);
}

TEST(GradScaler, a_disabled_one_passes_through) {
  GradScaler scaler({.enabled = false});
  const auto loss = torch::ones({});
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  Sgd optimizer({with_grad(torch::full({1}, 3.0))});
  scaler.unscale_(optimizer);
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_EQ(first_group(optimizer)[0].item<float>(), -3);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 1);
}

TEST(GradScaler, refuses_calls_out_of_order_and_factors_on_the_wrong_side) {
  GradScaler scaler;
  Sgd optimizer({with_grad(torch::ones({1}))});
  EXPECT_THAT(error_of([&] { scaler.update(); }), HasSubstr("found neither"));
  scaler.unscale_(optimizer);
  EXPECT_THAT(error_of([&] { scaler.unscale_(optimizer); }), HasSubstr("found a second"));
  scaler.step(optimizer);
  EXPECT_THAT(error_of([&] { scaler.step(optimizer); }), HasSubstr("found a second"));
  EXPECT_THAT(error_of([&] { scaler.unscale_(optimizer); }), HasSubstr("found it after"));
  scaler.update();
  scaler.unscale_(optimizer);
  EXPECT_THAT(error_of([] { GradScaler({.growth_factor = 1.0}); }), HasSubstr("found 1"));
  EXPECT_THAT(error_of([] { GradScaler({.backoff_factor = 1.0}); }), HasSubstr("found 1"));
}

}  // namespace
}  // namespace fsdp
