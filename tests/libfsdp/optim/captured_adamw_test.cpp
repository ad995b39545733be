// SPDX-License-Identifier: Apache-2.0
// Steps of fsdp::optim::AdamW that are captured on a simulated device and replayed.
#include <memory>
#include <vector>

#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "libfsdp/optim/adamw.h"
#include "libfsdp/optim_state_dict.h"
#include "tests/libfsdp/models.h"
#include "tests/libfsdp/sharded_case.h"
#include "tests/support/sim_device/capture.h"
#include "tests/support/sim_device/counters.h"
#include "tests/support/sim_device/device.h"
#include "tests/support/sim_device/findings.h"
#include "tests/support/sim_device/timeline.h"

namespace fsdp::test {
namespace {

using testing::Contains;
using testing::HasSubstr;
using torch::optim::AdamWOptions;

constexpr int kEagerSteps = 2;  // before the capture
constexpr int kReplays = 10;
// Exact in float32, as the device reads it.
constexpr double kLr = 0.0078125;

Tensor tokens_of(int step) {
  return random_tokens({2, 9}, 53, static_cast<std::uint64_t>(step));
}

// Training of a plain Gpt on device 0.
class Training {
 public:
  Training() {
    fill_parameters(*module_);
    const c10::StreamGuard entered(stream_);
    module_->to(sim::device_at(0));
    optimizer_ = std::make_unique<optim::AdamW>(
        module_->parameters(), AdamWOptions(kLr).betas({0.8, 0.95}).weight_decay(0.1));
    tokens_ = tokens_of(0).to(sim::device_at(0));
  }

  optim::AdamW& optimizer() { return *optimizer_; }

  double step(int number) {
    const c10::StreamGuard entered(stream_);
    tokens_.copy_(tokens_of(number));
    run();
    return loss_.item<double>();
  }
  sim::Graph capture() {
    const c10::StreamGuard entered(stream_);
    sim::Capture capture(0);
    run();
    return capture.end();
  }
  double replay(const sim::Graph& graph, int number) {
    const c10::StreamGuard entered(stream_);
    tokens_.copy_(tokens_of(number));
    graph.replay();
    return loss_.item<double>();
  }

  // The counts of all parameters.
  std::vector<double> counts() const {
    const c10::StreamGuard entered(stream_);
    std::vector<double> result;
    const StateDict dict = optimizer_state_dict(*optimizer_);
    for (const auto& [id, state] : dict.at("state").dict().entries())
      result.push_back(state.dict().at("step").as_tensor()->item<double>());
    return result;
  }

 private:
  void run() {
    optimizer_->zero_grad();
    const Tensor loss = next_token_loss(module_->forward(tokens_), tokens_);
    loss.backward();
    optimizer_->step();
    loss_ = loss.detach();
  }

  const c10::Stream stream_ = sim::new_stream(0, "training");
  Gpt module_;
  std::unique_ptr<optim::AdamW> optimizer_;
  Tensor tokens_;
  Tensor loss_;
};

TEST(CapturedAdamW, steps_take_no_memory_and_the_host_waits_for_none) {
  std::vector<Tensor> parameters;
  for (int i = 0; i < 3; ++i) {
    parameters.push_back(torch::ones({4, 3}, torch::TensorOptions().device(sim::device_at(0))));
    parameters.back().mutable_grad() = torch::ones_like(parameters.back());
  }
  optim::AdamW optimizer(parameters, AdamWOptions(kLr).amsgrad(true));
  optimizer.capturable().lr_on_device();
  optimizer.step();
  sim::reset_counters(0);
  for (int step = 0; step < 3; ++step) {
    optimizer.upload_lr();
    optimizer.step();
  }
  EXPECT_EQ(sim::counters(0).memory.allocations, 0);
  EXPECT_EQ(sim::counters(0).host_waits(), 0);
}

TEST(CapturedAdamW, losses_are_those_of_eager_steps) {
  Training eager;
  Training replayed;
  replayed.optimizer().capturable();
  for (int i = 0; i < kEagerSteps; ++i) EXPECT_EQ(replayed.step(i), eager.step(i));
  const sim::Graph graph = replayed.capture();
  for (int i = kEagerSteps; i < kEagerSteps + kReplays; ++i)
    EXPECT_EQ(replayed.replay(graph, i), eager.step(i)) << "step " << i;
  EXPECT_EQ(replayed.counts(), eager.counts());
  // The host goes on by itself.
  EXPECT_EQ(replayed.step(50), eager.step(50));
  EXPECT_EQ(replayed.step(51), eager.step(51));
}

TEST(CapturedAdamW, a_learning_rate_on_the_device_may_change_between_replays) {
  Training eager;
  Training replayed;
  replayed.optimizer().capturable().lr_on_device();
  for (int i = 0; i < kEagerSteps; ++i) EXPECT_EQ(replayed.step(i), eager.step(i));
  const sim::Graph graph = replayed.capture();
  for (int i = kEagerSteps; i < kEagerSteps + kReplays; ++i) {
    for (Training* const training : {&eager, &replayed})
      training->optimizer().param_groups()[0].options().set_lr(kLr / (1 << i));
    sim::synchronize(0);
    replayed.optimizer().upload_lr();
    sim::synchronize(0);
    EXPECT_EQ(replayed.replay(graph, i), eager.step(i)) << "step " << i;
  }
}

TEST(CapturedAdamW, a_learning_rate_of_the_host_is_that_of_the_capture) {
  Training eager;
  Training replayed;
  replayed.optimizer().capturable();
  for (int i = 0; i < kEagerSteps; ++i) EXPECT_EQ(replayed.step(i), eager.step(i));
  const sim::Graph graph = replayed.capture();
  replayed.optimizer().param_groups()[0].options().set_lr(100);
  for (int i = kEagerSteps; i < kEagerSteps + 3; ++i)
    EXPECT_EQ(replayed.replay(graph, i), eager.step(i)) << "step " << i;
}

TEST(CapturedAdamW, steps_that_the_host_counts_go_wrong) {
  Training eager;
  Training replayed;
  for (int i = 0; i < kEagerSteps; ++i) EXPECT_EQ(replayed.step(i), eager.step(i));
  const sim::Graph graph = replayed.capture();
  // The first replay makes the step of the capture; the loss shows it after that.
  EXPECT_EQ(replayed.replay(graph, 2), eager.step(2));
  EXPECT_EQ(replayed.replay(graph, 3), eager.step(3));
  EXPECT_NE(replayed.replay(graph, 4), eager.step(4));
}

TEST(CapturedAdamW, a_state_that_was_loaded_needs_another_capture) {
  Training training;
  training.optimizer().capturable();
  for (int i = 0; i < kEagerSteps; ++i) training.step(i);
  const sim::Graph graph = training.capture();
  StateDict state = optimizer_state_dict(training.optimizer());
  for (auto& [id, entry] : state.at("state").dict().entries()) {
    for (auto& [key, value] : entry.dict().entries()) value = value.as_tensor()->clone();
  }
  load_optimizer_state_dict(training.optimizer(), state);
  sim::synchronize(0);
  sim::take_findings();
  training.replay(graph, 2);
  EXPECT_THAT(sim::take_findings(), Contains(HasSubstr("a graph uses memory that was freed")));
}

}  // namespace
}  // namespace fsdp::test
