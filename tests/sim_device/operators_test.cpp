// SPDX-License-Identifier: Apache-2.0
// Operators and modules of LibTorch on the simulated device, compared with the CPU.
#include <functional>

#include "tests/libfsdp/models.h"
#include "tests/libfsdp/sharded_case.h"
#include "tests/sim_device/sim_test.h"

namespace fsdp::test::sim {
namespace {

using torch::Tensor;

class SimOperators : public SimDevice {
 protected:
  // Trains a module on the CPU and on the device.
  template <typename Holder>
  void expect_same(const std::function<Tensor(Holder&, c10::Device)>& loss_of) const {
    Holder expected;
    Holder found;
    fill_parameters(*expected);
    fill_parameters(*found);
    found->to(device_);
    const auto sgd = torch::optim::SGDOptions(0.05).momentum(0.5);
    torch::optim::SGD expected_optimizer(expected->parameters(), sgd);
    torch::optim::SGD found_optimizer(found->parameters(), sgd);
    for (int step = 0; step < 2; ++step) {
      expected_optimizer.zero_grad();
      found_optimizer.zero_grad();
      loss_of(expected, c10::kCPU).backward();
      loss_of(found, device_).backward();
      expected_optimizer.step();
      found_optimizer.step();
    }
    for (const auto& item : expected->named_parameters())
      EXPECT_LE(distance(found->named_parameters()[item.key()].cpu(), item.value()), 2e-6)
          << item.key();
    for (const auto& item : expected->named_buffers())
      EXPECT_LE(distance(found->named_buffers()[item.key()].cpu().to(torch::kDouble),
                         item.value().to(torch::kDouble)),
                2e-6)
          << item.key();
  }

  template <typename Holder>
  void expect_same_regression(std::vector<std::int64_t> shape) const {
    expect_same<Holder>([&](Holder& module, c10::Device device) {
      return module->forward(random_values(shape, 5).to(device)).square().mean();
    });
  }

  template <typename Holder>
  void expect_same_language_model() const {
    expect_same<Holder>([](Holder& module, c10::Device device) {
      const Tensor tokens = random_tokens({2, 9}, 53, 3).to(device);
      return next_token_loss(module->forward(tokens), tokens);
    });
  }
};

TEST_F(SimOperators, attention_and_embeddings) {
  expect_same_language_model<Gpt>();
  expect_same_language_model<Tied>();
}
TEST_F(SimOperators, recurrent_nets) {
  expect_same_regression<Recurrent>({4, 5, 6});
}
TEST_F(SimOperators, convolutions_norms_gru_and_transformers) {
  expect_same_regression<Zoo>({2, 2, 4, 4});
}
TEST_F(SimOperators, views_and_stacks) {
  expect_same_regression<Crossed>({4, 6});
  expect_same_regression<Viewed>({4, 6});
  expect_same_regression<Odd>({4, 7});
  expect_same_regression<Stacks>({4, 7});
}

TEST_F(SimOperators, running_statistics_count_as_written) {
  torch::nn::BatchNorm2d norm(3);
  norm->to(device_);
  const Tensor x = values({2, 3, 4, 4});
  order_by_event(main_, side_);
  on(side_, [&] { norm(x); });
  norm->running_mean.cpu();
  const auto findings = take_findings();
  ASSERT_FALSE(findings.empty());
  EXPECT_THAT(findings.front(), testing::HasSubstr("written by aten::native_batch_norm"));
}

TEST_F(SimOperators, outputs_without_elements_get_their_size) {
  const Tensor x = values({3, 4});
  Tensor out = torch::empty({0}, x.options());
  at::mm_out(out, x, x.t());
  EXPECT_TRUE(torch::equal(out.cpu(), x.cpu().mm(x.cpu().t())));
}

TEST_F(SimOperators, random_numbers_come_from_the_generator_of_the_device) {
  const auto options = torch::TensorOptions().device(device_);
  auto generator = at::globalContext().defaultGenerator(device_);
  generator.set_current_seed(3);
  const Tensor first = torch::rand({8}, options).cpu();
  generator.set_current_seed(3);
  EXPECT_TRUE(torch::equal(torch::rand({8}, options).cpu(), first));
}

}  // namespace
}  // namespace fsdp::test::sim
