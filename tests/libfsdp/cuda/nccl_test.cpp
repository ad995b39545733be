// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "libfsdp/internal/comm/backend_registry.h"
#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/flight_record.h"
#include "libfsdp/process_group.h"
#include "tests/support/temp_dir.h"

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
  EXPECT_THAT(message, ::testing::HasSubstr("expected a cuda device for this rank, but this "
                                            "process sees none"));
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

TEST_F(NcclOnDevice, the_group_takes_the_device_and_subgroups_split_from_it) {
  EXPECT_EQ(group_->device().type(), c10::DeviceType::CUDA);
  EXPECT_TRUE(group_->device().has_index());
  const auto part = group_->subgroup({0});
  auto value = at::ones({4}, at::TensorOptions(part->device()));
  all_reduce(part, value, ReduceOp::kSum, "all-reduce of the subgroup").wait();
  EXPECT_EQ(value.sum().item<float>(), 4);
}

TEST_F(NcclOnDevice, options_are_taken_and_the_flight_record_is_a_pickle) {
  const test::TempDir folder;
  auto options = one_rank();
  options.nccl.is_high_priority_stream = true;
  options.nccl.config.max_ctas = 2;
  const auto group = init_process_group(options);
  auto value = at::ones({4}, at::TensorOptions(group->device()));
  all_reduce(group, value, ReduceOp::kSum, "all-reduce").wait();
  FlightRecord record(folder / "trace_0", backend_kind("nccl").flight_record);
  record.write();
  // Protocol 2 begins so; torch.distributed.flight_recorder reads it.
  std::ifstream in(folder / "trace_0", std::ios::binary);
  EXPECT_EQ(in.get(), 0x80);
}

}  // namespace
}  // namespace fsdp
