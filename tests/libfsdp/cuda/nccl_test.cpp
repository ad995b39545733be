// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "libfsdp/internal/comm/backend_registry.h"
#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/comm/peer_error.h"
#include "libfsdp/process_group.h"

namespace fsdp {
using namespace internal;
namespace {

ProcessGroupOptions one_rank() {
  ProcessGroupOptions options;
  options.backend = "nccl";
  options.rank = 0;
  options.world_size = 1;
  return options;
}

TEST(Nccl, programs_that_link_the_library_have_the_backend) {
  EXPECT_TRUE(backend_kind("nccl").waits_on_stream);
  EXPECT_TRUE(backend_kind("nccl").reduces_while_scattering);
}

TEST(Nccl, without_a_device_the_error_says_so) {
  if (torch::cuda::is_available()) GTEST_SKIP() << "this machine has a CUDA device";
  std::string message;
  try {
    init_process_group(one_rank());
  } catch (const c10::Error& error) {
    message = message_of(error);
  }
  EXPECT_THAT(message, ::testing::HasSubstr("backend nccl needs a CUDA device, and this machine "
                                            "shows none"));
}

class NcclOnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
    group_ = init_process_group(one_rank());
  }

  std::shared_ptr<ProcessGroup> group_;
};

TEST_F(NcclOnDevice, collectives_of_one_rank_return_what_it_gave) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kLong, at::kByte}) {
    const auto input = at::arange(100, at::kLong).to(at::kCUDA, dtype);
    auto gathered = at::zeros_like(input);
    all_gather(group_, gathered, input, "all-gather").wait();
    EXPECT_TRUE(at::equal(gathered, input));
    auto exchanged = at::zeros_like(input);
    all_to_all(group_, exchanged, input, "all-to-all").wait();
    EXPECT_TRUE(at::equal(exchanged, input));
    auto scattered = at::zeros_like(input);
    reduce_scatter(group_, scattered, input, "reduce-scatter").wait();
    EXPECT_TRUE(at::equal(scattered, input));
    for (const auto op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
      auto reduced = input.clone();
      all_reduce(group_, reduced, op, "all-reduce").wait();
      EXPECT_TRUE(at::equal(reduced, input));
    }
    auto sent = input.clone();
    broadcast(group_, sent, 0, "broadcast").wait();
    EXPECT_TRUE(at::equal(sent, input));
  }
  barrier(group_, "barrier");
}

}  // namespace
}  // namespace fsdp
