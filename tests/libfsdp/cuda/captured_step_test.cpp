// SPDX-License-Identifier: Apache-2.0
// A step that is captured in a CUDA graph, and replayed; tests/libfsdp/sim/capture_test.cpp has
// more of them, on simulated devices.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "libfsdp/fully_sharded.h"
#include "libfsdp/optim/adamw.h"
#include "libfsdp/process_group.h"
#include "libfsdp/wrap_policy.h"
#include "samples/gpt.h"

namespace fsdp {
namespace {

constexpr int kEagerSteps = 3;  // before the capture
constexpr int kReplays = 20;
constexpr std::int64_t kBatch = 4;
const GPTOptions kSizes{.vocabulary = 512, .width = 256, .layers = 4, .heads = 4, .length = 64};

at::Tensor tokens(int step) {
  const std::int64_t count = kBatch * (kSizes.length + 1);
  const at::Tensor places = torch::arange(count) + step * count;
  return (places * places % 509).view({kBatch, kSizes.length + 1});
}

struct Training {
  std::vector<float> losses;
  double median_ms = 0;  // of an eager step or a replay
};

class CapturedStep : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
    ProcessGroupOptions options;
    options.backend = "nccl";
    options.rank = 0;
    options.world_size = 1;
    group_ = init_process_group(options);
  }

  Training train(bool captured) {
    const c10::cuda::CUDAStreamGuard entered(c10::cuda::getStreamFromPool());
    ::GPT module(kSizes);
    initialize(*module, 1);
    FsdpOptions options;
    options.process_group = group_;
    options.device_id = group_->device();
    options.auto_wrap_policy = module_wrap_policy<::BlockImpl>();
    options.bucket_bytes = 0;
    options.use_orig_params = true;
    FullyShardedDataParallel<::GPT> sharded(module, options);
    optim::AdamW optimizer(sharded.parameters(), torch::optim::AdamWOptions(1e-3));
    optimizer.capturable();
    at::Tensor input = tokens(0).to(group_->device());
    at::Tensor loss;
    const auto step = [&] {
      optimizer.zero_grad();
      const at::Tensor logits = sharded.forward(input.narrow(1, 0, kSizes.length));
      const at::Tensor result = torch::nn::functional::cross_entropy(
          logits.flatten(0, 1), input.narrow(1, 1, kSizes.length).flatten());
      result.backward();
      sharded.clip_grad_norm_(0.3);
      optimizer.step();
      loss = result.detach();
    };
    at::cuda::CUDAGraph graph;
    Training training;
    std::vector<double> took;
    for (int number = 0; number < kEagerSteps + kReplays; ++number) {
      if (captured && number == kEagerSteps) {
        torch::cuda::synchronize();
        graph.capture_begin();
        step();
        graph.capture_end();
      }
      input.copy_(tokens(number));
      torch::cuda::synchronize();
      const auto begin = std::chrono::steady_clock::now();
      if (captured && number >= kEagerSteps) {
        graph.replay();
      } else {
        step();
      }
      torch::cuda::synchronize();
      const std::chrono::duration<double, std::milli> taken =
          std::chrono::steady_clock::now() - begin;
      if (number >= kEagerSteps) took.push_back(taken.count());
      training.losses.push_back(loss.item<float>());
    }
    std::sort(took.begin(), took.end());
    training.median_ms = took[took.size() / 2];
    return training;
  }

  std::shared_ptr<ProcessGroup> group_;
};

TEST_F(CapturedStep, replayed_twenty_times_has_the_losses_of_eager_steps) {
  const Training expected = train(/*captured=*/false);
  const Training found = train(/*captured=*/true);
  RecordProperty("eager_ms", std::to_string(expected.median_ms));
  RecordProperty("replay_ms", std::to_string(found.median_ms));
  RecordProperty("identical", found.losses == expected.losses ? "yes" : "no");
  // Kernels that add by atomics may round in another order each time.
  for (std::size_t i = 0; i < expected.losses.size(); ++i)
    EXPECT_NEAR(found.losses[i], expected.losses[i], 1e-5 * expected.losses[i]) << "step " << i;
  EXPECT_LT(found.losses.back(), found.losses.front());
}

}  // namespace
}  // namespace fsdp
