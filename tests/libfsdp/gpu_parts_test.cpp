// SPDX-License-Identifier: Apache-2.0
// The parts around the engine, on a GPU.
#include <limits>
#include <vector>

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "libfsdp/activation_checkpoint.h"
#include "libfsdp/grad_scaler.h"
#include "libfsdp/meta_device.h"
#include "libfsdp/optim/adamw.h"

namespace fsdp {
namespace {

namespace nn = torch::nn;

class PartsOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "LibTorch finds no CUDA device";
  }
  const torch::Device gpu_{torch::kCUDA, 0};
};

TEST_F(PartsOnGpu, recomputation_drops_the_same_elements_under_the_same_autocast) {
  nn::Sequential block(nn::Linear(64, 64), nn::Dropout(0.5), nn::Linear(64, 64));
  block->to(gpu_);
  const auto x = torch::randn({16, 64}, gpu_);
  const auto gradients = [&](bool recompute) {
    block->zero_grad();
    torch::manual_seed(5);
    at::autocast::set_autocast_enabled(torch::kCUDA, true);
    auto call = [block](const at::Tensor& h) mutable { return block->forward(h); };
    const auto y = recompute ? checkpoint(call, x) : call(x);
    at::autocast::set_autocast_enabled(torch::kCUDA, false);
    at::autocast::clear_cache();
    EXPECT_EQ(y.scalar_type(), torch::kHalf);
    y.to(torch::kFloat).square().sum().backward();
    std::vector<at::Tensor> result;
    for (const auto& parameter : block->parameters()) result.push_back(parameter.grad().clone());
    return result;
  };
  const auto expected = gradients(false);
  const auto actual = gradients(true);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(torch::equal(actual[i], expected[i])) << i;
  }
}

TEST_F(PartsOnGpu, the_fused_adamw_steps_as_on_the_cpu) {
  torch::manual_seed(5);
  std::vector<at::Tensor> on_cpu{torch::randn({33, 7}), torch::randn({5}), torch::randn({0, 3})};
  std::vector<at::Tensor> on_gpu;
  for (const auto& parameter : on_cpu) on_gpu.push_back(parameter.to(gpu_));
  const auto options = torch::optim::AdamWOptions(1e-2).amsgrad(true);
  optim::AdamW expected(on_cpu, options);
  optim::AdamW actual(on_gpu, options);
  for (int step = 0; step < 5; ++step) {
    for (std::size_t i = 0; i < on_cpu.size(); ++i) {
      on_cpu[i].mutable_grad() = torch::randn_like(on_cpu[i]);
      on_gpu[i].mutable_grad() = on_cpu[i].grad().to(gpu_) * 128;
    }
    expected.step();
    actual.scale_next_step(torch::full({1}, 128.0), torch::zeros({1}));
    actual.step();
  }
  for (std::size_t i = 0; i < on_cpu.size(); ++i) {
    EXPECT_TRUE(torch::allclose(on_gpu[i].cpu(), on_cpu[i], 1e-5, 1e-6)) << i;
  }
}

TEST_F(PartsOnGpu, the_scaler_finds_infinities) {
  GradScaler scaler({.init_scale = 8});
  auto parameter = torch::zeros({4}, torch::TensorOptions(gpu_).dtype(torch::kHalf));
  torch::optim::SGD optimizer(std::vector<at::Tensor>{parameter}, 1.0);
  for (const bool bad : {false, true}) {
    parameter.mutable_grad() = torch::full_like(parameter, 16.0);
    if (bad) parameter.mutable_grad()[2] = std::numeric_limits<float>::infinity();
    EXPECT_EQ(scaler.step(optimizer), !bad);
    scaler.update();
  }
  EXPECT_EQ(scaler.get_scale(), 4);
  EXPECT_TRUE(torch::equal(parameter.cpu(), torch::full({4}, -2.0, torch::kHalf)));
}

TEST_F(PartsOnGpu, modules_are_materialized_where_they_compute) {
  auto build = [] {
    const MetaDevice meta;
    return nn::LSTM(nn::LSTMOptions(8, 16).num_layers(2));
  };
  auto lstm = build();
  materialize(*lstm, gpu_);
  for (const auto& parameter : lstm->parameters()) {
    EXPECT_EQ(parameter.device(), gpu_);
    EXPECT_LE(parameter.abs().max().item<double>(), 0.25);  // 1 / sqrt(16)
  }
  const auto output = std::get<0>(lstm(torch::randn({5, 2, 8}, gpu_)));
  EXPECT_TRUE(torch::isfinite(output).all().item<bool>());
  output.sum().backward();
  EXPECT_EQ(lstm->parameters()[0].grad().device(), gpu_);
}

}  // namespace
}  // namespace fsdp
