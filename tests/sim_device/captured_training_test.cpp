// SPDX-License-Identifier: Apache-2.0
// Steps of plain modules that are captured whole and replayed, compared with the same steps without
// a capture.
#include <functional>
#include <optional>
#include <utility>

#include "libfsdp/internal/comm/collectives.h"
#include "tests/libfsdp/models.h"
#include "tests/libfsdp/sharded_case.h"
#include "tests/sim_device/sim_test.h"
#include "tests/support/sim_device/capture.h"
#include "tests/support/spawn_ranks.h"

namespace fsdp::test::sim {
namespace {

using internal::all_reduce;
using internal::ReduceOp;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using torch::Tensor;
using Group = std::shared_ptr<ProcessGroup>;

constexpr int kEagerSteps = 2;  // before the capture
constexpr int kReplays = 10;

// Steps with inputs that are copied into one tensor.
template <typename Holder>
class Training {
 public:
  using LossOf = std::function<Tensor(Holder&, const Tensor& input)>;

  // `after_backward` gets the gradients.
  Training(
      c10::Device device, const Tensor& first, LossOf loss_of,
      std::function<void(const Tensor&)> after_backward = [](const Tensor&) {})
      : loss_of_(std::move(loss_of)),
        after_backward_(std::move(after_backward)),
        stream_(new_stream(device.index(), "training")) {
    fill_parameters(*module_);
    const c10::StreamGuard entered(stream_);
    module_->to(device);
    input_ = first.to(device);
    optimizer_.emplace(module_->parameters(), torch::optim::SGDOptions(0.05).momentum(0.5));
  }

  // Returns the loss.
  double step(const Tensor& input) {
    const c10::StreamGuard entered(stream_);
    input_.copy_(input);
    step();
    return loss_.template item<double>();
  }

  Graph capture() {
    const c10::StreamGuard entered(stream_);
    Capture capture(stream_.device_index());
    step();
    return capture.end();
  }
  double replay(const Graph& graph, const Tensor& input) {
    const c10::StreamGuard entered(stream_);
    input_.copy_(input);
    graph.replay();
    return loss_.template item<double>();
  }

  std::vector<Tensor> weights() const {
    const c10::StreamGuard entered(stream_);
    std::vector<Tensor> result;
    for (const Tensor& tensor : module_->parameters()) result.push_back(tensor.detach().cpu());
    for (const Tensor& tensor : module_->buffers()) result.push_back(tensor.detach().cpu());
    return result;
  }

 private:
  void step() {
    optimizer_->zero_grad();
    const Tensor loss = loss_of_(module_, input_);
    loss.backward();
    for (const Tensor& parameter : module_->parameters()) after_backward_(parameter.grad());
    optimizer_->step();
    loss_ = loss.detach();
  }

  const LossOf loss_of_;
  const std::function<void(const Tensor&)> after_backward_;
  const c10::Stream stream_;
  Holder module_;
  std::optional<torch::optim::SGD> optimizer_;
  Tensor input_;
  Tensor loss_;
};

// `input_of` returns the input of a step.  Losses and weights have to be the very same.
template <typename Holder>
void compare(Training<Holder>& eager, Training<Holder>& replayed,
             const std::function<Tensor(int step)>& input_of) {
  for (int i = 0; i < kEagerSteps; ++i)
    EXPECT_EQ(replayed.step(input_of(i)), eager.step(input_of(i)));
  const Graph graph = replayed.capture();
  for (int i = kEagerSteps; i < kEagerSteps + kReplays; ++i)
    EXPECT_EQ(replayed.replay(graph, input_of(i)), eager.step(input_of(i))) << "step " << i;
  const std::vector<Tensor> expected = eager.weights();
  const std::vector<Tensor> found = replayed.weights();
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(torch::equal(found[i], expected[i])) << "tensor " << i;
}

template <typename Holder>
void compare_on_device_0(const typename Training<Holder>::LossOf& loss_of,
                         const std::function<Tensor(int step)>& input_of) {
  Training<Holder> eager(device_at(0), input_of(0), loss_of);
  Training<Holder> replayed(device_at(0), input_of(0), loss_of);
  compare<Holder>(eager, replayed, input_of);
}

template <typename Holder>
void compare_regressions(const std::vector<std::int64_t>& shape) {
  compare_on_device_0<Holder>(
      [](Holder& module, const Tensor& input) { return module->forward(input).square().mean(); },
      [&](int step) { return random_values(shape, static_cast<std::uint64_t>(step)); });
}

template <typename Holder>
Tensor language_loss(Holder& module, const Tensor& tokens) {
  return next_token_loss(module->forward(tokens), tokens);
}

Tensor tokens_of(int rank, int step) {
  return random_tokens({2, 9}, 53, static_cast<std::uint64_t>(100 * step + rank));
}

TEST(SimCapturedTraining, of_attention_and_embeddings) {
  const auto tokens = [](int step) { return tokens_of(0, step); };
  compare_on_device_0<Gpt>(&language_loss<Gpt>, tokens);
  compare_on_device_0<Tied>(&language_loss<Tied>, tokens);
}
TEST(SimCapturedTraining, of_recurrent_nets) {
  compare_regressions<Recurrent>({4, 5, 6});
}
// The Zoo without attention.
struct QuietZooImpl : ZooImpl {
  Tensor forward(const Tensor& x) {
    const Tensor y = group(up(prelu(batch(conv(x)))));
    const Tensor z = std::get<0>(gru(y.flatten(2).unfold(2, 32, 32).flatten(1, 2)));
    return bilinear(z, torch::tanh(z));
  }
};
TORCH_MODULE(QuietZoo);

TEST(SimCapturedTraining, of_convolutions_norms_and_gru) {
  compare_regressions<QuietZoo>({2, 2, 4, 4});
}
TEST(SimCapturedTraining, of_attention_that_compares_its_inputs_is_reported) {
  const c10::StreamGuard entered(new_stream(0, "side"));
  torch::nn::MultiheadAttention attention(torch::nn::MultiheadAttentionOptions(8, 2));
  attention->to(device_at(0));
  const Tensor x = torch::ones({3, 2, 8}, torch::TensorOptions().device(device_at(0)));
  Capture capture(0);
  attention(x, x, x);
  const Graph graph = capture.end();
  EXPECT_THAT(take_findings(), Contains(HasSubstr("in a capture: the host waits for a number")));
}
TEST(SimCapturedTraining, of_views_and_stacks) {
  compare_regressions<Crossed>({4, 6});
  compare_regressions<Viewed>({4, 6});
  compare_regressions<Odd>({4, 7});
  compare_regressions<Stacks>({4, 7});
}

TEST(SimCapturedTraining, a_replay_takes_no_memory_and_no_kernel_of_the_host) {
  Training<Gpt> training(device_at(0), tokens_of(0, 0), &language_loss<Gpt>);
  training.step(tokens_of(0, 0));
  const Graph graph = training.capture();
  const Tensor input = tokens_of(0, 1).to(device_at(0));
  synchronize(0);
  reset_counters(0);
  training.replay(graph, input);
  const Counters found = counters(0);
  EXPECT_EQ(found.memory.allocations, 0);
  EXPECT_EQ(found.kernels, 1) << "the copy of the input";
  EXPECT_EQ(found.replays, 1);
}

// LibTorch accumulates gradients on the stream of the first forward whose graph still lives.
TEST(SimCapturedTraining, after_a_forward_on_the_default_stream_is_reported) {
  torch::nn::Linear layer(3, 3);
  layer->to(device_at(0));
  const Tensor x = torch::ones({2, 3}, torch::TensorOptions().device(device_at(0)));
  const Tensor kept = layer(x).sum();  // and its graph, on the default stream
  const c10::Stream side = new_stream(0, "side");
  synchronize(0);
  const c10::StreamGuard entered(side);
  Capture capture(0);
  layer(x).sum().backward();
  const Graph graph = capture.end();
  EXPECT_THAT(take_findings(), Contains(HasSubstr("the default stream cannot be part of")));
}

// ---- several ranks

// A data-parallel step: gradients are summed over the ranks.
Training<Gpt> on_rank(const Group& group) {
  return {sim::device_at(group->rank()), tokens_of(group->rank(), 0), &language_loss<Gpt>,
          [group](const Tensor& gradient) {
            Tensor sum = gradient;
            all_reduce(group, sum, ReduceOp::kSum, "sum").wait();
          }};
}

TEST(SimCapturedTraining, of_two_ranks_with_collectives) {
  spawn_ranks(2, [](const Group& group) {
    Training<Gpt> eager = on_rank(group);
    Training<Gpt> replayed = on_rank(group);
    compare<Gpt>(eager, replayed, [&](int step) { return tokens_of(group->rank(), step); });
    synchronize(group->rank());
  });
  EXPECT_THAT(take_findings(), IsEmpty());
}

TEST(SimCapturedTraining, collectives_of_each_kind_are_replayed) {
  spawn_ranks(2, [](const Group& group) {
    const int rank = group->rank();
    const c10::StreamGuard entered(new_stream(rank, "side"));
    const auto options = torch::TensorOptions().device(device_at(rank));
    Tensor x = torch::zeros({4}, options);
    Tensor sum = torch::zeros({4}, options);
    Tensor gathered = torch::zeros({2, 4}, options);
    Tensor scattered = torch::zeros({2}, options);
    Tensor from_1 = torch::zeros({4}, options);
    Tensor exchanged = torch::zeros({2, 2}, options);
    Capture capture(rank);
    sum.copy_(x);
    from_1.copy_(x);
    all_reduce(group, sum, ReduceOp::kSum, "sum").wait();
    internal::all_gather(group, gathered, x, "gather").wait();
    internal::reduce_scatter(group, scattered, x, "scatter").wait();
    internal::broadcast(group, from_1, 1, "broadcast").wait();
    internal::all_to_all(group, exchanged, x.view({2, 2}), "exchange").wait();
    const Graph graph = capture.end();
    EXPECT_EQ(counters(rank).captured_kernels, 7);
    for (int i = 1; i < 4; ++i) {
      x.fill_(10 * i + rank);
      graph.replay();
      EXPECT_TRUE(sum.eq(20 * i + 1).all().item<bool>());
      EXPECT_TRUE(gathered[0].eq(10 * i).all().item<bool>());
      EXPECT_TRUE(gathered[1].eq(10 * i + 1).all().item<bool>());
      EXPECT_TRUE(scattered.eq(20 * i + 1).all().item<bool>());
      EXPECT_TRUE(from_1.eq(10 * i + 1).all().item<bool>());
      EXPECT_TRUE(torch::equal(exchanged, gathered.narrow(1, 0, 2)));
    }
  });
  EXPECT_THAT(take_findings(), IsEmpty());
}

TEST(SimCapturedTraining, a_collective_that_nobody_waits_for_is_reported) {
  spawn_ranks(2, [](const Group& group) {
    const int rank = group->rank();
    const c10::StreamGuard entered(new_stream(rank, "caller"));
    Tensor x = torch::ones({4}, torch::TensorOptions().device(device_at(rank)));
    Capture capture(rank);
    auto pending = all_reduce(group, x, ReduceOp::kSum, "sum");
    const Graph graph = capture.end();
  });
  const auto findings = take_findings();
  for (const char* const device : {"0", "1"})
    EXPECT_THAT(findings, Contains(HasSubstr(std::string("comm of device ") + device +
                                             " was not joined into caller")));
}

}  // namespace
}  // namespace fsdp::test::sim
