// SPDX-License-Identifier: Apache-2.0
// Steps of a sharded Gpt that are captured whole on simulated devices, and replayed.
#include "tests/support/sim_device/capture.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <c10/core/StreamGuard.h>

#include "libfsdp/optim/adamw.h"
#include "libfsdp/state_dict.h"
#include "tests/libfsdp/sim/scene.h"
#include "tests/support/test_device.h"

namespace fsdp::test {
namespace {

constexpr int kEagerSteps = 2;  // before the capture
constexpr int kReplays = 10;

// What a rank has at the end.
struct Result {
  std::vector<double> losses;
  std::vector<Tensor> weights;  // whole, on the CPU
};

// One rank's training, on a stream of its own.
class Steps {
 public:
  Steps(Gpt module, const FsdpOptions& options)
      : rank_(options.process_group->rank()), stream_(sim::new_stream(rank_, "training")) {
    sharded_ = std::make_unique<ShardedGpt>(std::move(module), options);
    name_lanes(*sharded_);
    optimizer_ =
        std::make_unique<optim::AdamW>(sharded_->parameters(), torch::optim::AdamWOptions(1e-3));
    optimizer_->capturable();
    input_ = device_tokens(rank_, 0);
    sim::order(c10::Stream(c10::Stream::DEFAULT, device_of_rank(rank_)), stream_);
  }

  void step(int number) {
    const c10::StreamGuard entered(stream_);
    input_.copy_(device_tokens(rank_, number));
    run();
    result_.losses.push_back(loss_.item<double>());
  }
  sim::Graph capture() {
    const c10::StreamGuard entered(stream_);
    sim::Capture capture(rank_);
    run();
    return capture.end();
  }
  void replay(const sim::Graph& graph, int number) {
    const c10::StreamGuard entered(stream_);
    input_.copy_(device_tokens(rank_, number));
    graph.replay();
    result_.losses.push_back(loss_.item<double>());
  }

  void trace() {
    const c10::StreamGuard entered(stream_);
    sharded_->start_trace();
  }
  std::size_t traced() const { return internal::engine_of(*sharded_).trace()->size(); }

  Result result() {
    sim::synchronize(rank_);
    const StateDict state = sharded_->state_dict();
    for (const auto& [key, value] : state.entries())
      result_.weights.push_back(value.as_tensor()->cpu());
    return result_;
  }

 private:
  void run() {
    optimizer_->zero_grad();
    const Tensor loss = next_token_loss(sharded_->forward(input_), input_);
    loss.backward();
    sharded_->clip_grad_norm_(0.3);
    optimizer_->step();
    loss_ = loss.detach();
  }

  const int rank_;
  const c10::Stream stream_;
  std::unique_ptr<ShardedGpt> sharded_;
  std::unique_ptr<optim::AdamW> optimizer_;
  Tensor input_;
  Tensor loss_;
  Result result_;
};

// Returns the ranks' results of eager steps, or of replays after the first ones.
std::vector<Result> train(const Scene& scene, bool captured) {
  std::vector<Result> results(static_cast<std::size_t>(scene.world_size));
  run(scene, [&](const Group& group, FsdpOptions options) {
    options.auto_wrap_policy = module_wrap_policy<BlockImpl>();
    Gpt module(scene.layers, scene.checkpointed, 32);
    fill_parameters(*module);
    Steps steps(std::move(module), options);
    int number = 0;
    steps.trace();
    while (number < kEagerSteps) steps.step(number++);
    const std::size_t traced = steps.traced();
    std::optional<sim::Graph> graph;
    if (captured) {
      graph.emplace(steps.capture());
      EXPECT_EQ(steps.traced(), traced) << "of steps that run when the graph is replayed";
    }
    while (number < kEagerSteps + kReplays)
      graph ? steps.replay(*graph, number++) : steps.step(number++);
    // A program may go on without its graph.
    for (int i = 0; i < 2; ++i) steps.step(number++);
    results[static_cast<std::size_t>(group->rank())] = steps.result();
  });
  return results;
}

void compare(const Scene& scene) {
  const std::vector<Result> expected = train(scene, /*captured=*/false);
  const std::vector<Result> found = train(scene, /*captured=*/true);
  for (std::size_t rank = 0; rank < expected.size(); ++rank) {
    EXPECT_EQ(found[rank].losses, expected[rank].losses) << "rank " << rank;
    for (std::size_t i = 0; i < expected[rank].weights.size(); ++i)
      EXPECT_TRUE(torch::equal(found[rank].weights[i], expected[rank].weights[i]))
          << "rank " << rank << ", tensor " << i;
  }
}

TEST(SimCapturedSteps, of_full_shard_equal_eager_ones) {
  compare(Scene());
}
TEST(SimCapturedSteps, with_forward_prefetch_equal_eager_ones) {
  Scene scene;
  scene.options.forward_prefetch = true;
  compare(scene);
}
TEST(SimCapturedSteps, without_a_limit_equal_eager_ones) {
  Scene scene;
  scene.options.limit_all_gathers = false;
  scene.options.forward_prefetch = true;
  compare(scene);
}
TEST(SimCapturedSteps, of_one_rank_equal_eager_ones) {
  Scene scene;
  scene.world_size = 1;
  compare(scene);
}

}  // namespace
}  // namespace fsdp::test
