// SPDX-License-Identifier: Apache-2.0
// Collectives of simulated devices: results, and the order of streams.
#include "tests/support/sim_device/backend.h"

#include <mutex>

#include "libfsdp/internal/comm/collectives.h"
#include "tests/sim_device/sim_test.h"
#include "tests/support/spawn_ranks.h"
#include "tests/support/test_device.h"

namespace fsdp::test::sim {
namespace {

using internal::all_gather;
using internal::all_reduce;
using internal::broadcast;
using internal::Pending;
using internal::reduce_scatter;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using torch::Tensor;
using Group = std::shared_ptr<ProcessGroup>;

Tensor ranks_values(const Group& group, std::int64_t numel) {
  return torch::full({numel}, group->rank() + 1.0,
                     torch::TensorOptions().device(device_of_rank(group->rank())));
}

TEST(SimBackend, collectives_give_what_they_should) {
  for (const int world_size : {1, 2, 3}) {
    spawn_ranks(world_size, [&](const Group& group) {
      const double sum = world_size * (world_size + 1) / 2.0;
      Tensor x = ranks_values(group, 4);
      Tensor gathered = torch::empty({world_size, 4}, x.options());
      all_gather(group, gathered, x, "gather").wait();
      for (int rank = 0; rank < world_size; ++rank)
        EXPECT_TRUE(gathered[rank].eq(rank + 1).all().item<bool>());
      Tensor scattered = torch::empty({4}, x.options());
      const Tensor whole = ranks_values(group, 4L * world_size);
      reduce_scatter(group, scattered, whole, "scatter").wait();
      EXPECT_TRUE(scattered.eq(sum).all().item<bool>());
      all_reduce(group, x, internal::ReduceOp::kSum, "sum").wait();
      EXPECT_TRUE(x.eq(sum).all().item<bool>());
      Tensor low = ranks_values(group, 4).to(torch::kBFloat16);
      all_reduce(group, low, internal::ReduceOp::kSum, "sum").wait();
      EXPECT_TRUE(low.eq(sum).all().item<bool>());
      Tensor from_last = ranks_values(group, 4);
      broadcast(group, from_last, world_size - 1, "broadcast").wait();
      EXPECT_TRUE(from_last.eq(world_size).all().item<bool>());
    });
  }
  EXPECT_THAT(take_findings(), IsEmpty());
}

TEST(SimBackend, a_result_that_is_read_before_anybody_waited_is_reported) {
  spawn_ranks(2, [](const Group& group) {
    const Tensor x = ranks_values(group, 4);
    Tensor gathered = torch::empty({2, 4}, x.options());
    Pending pending = all_gather(group, gathered, x, "gather");
    gathered + 1;
    pending.wait();
  });
  EXPECT_THAT(take_findings(), Contains(HasSubstr("written by all_gather on comm of device 0")));
}

TEST(SimBackend, an_input_that_is_written_before_anybody_waited_is_reported) {
  spawn_ranks(2, [](const Group& group) {
    Tensor x = ranks_values(group, 4);
    Tensor gathered = torch::empty({2, 4}, x.options());
    Pending pending = all_gather(group, gathered, x, "gather");
    x.zero_();
    pending.wait();
  });
  EXPECT_THAT(take_findings(), Contains(HasSubstr("writes what is read by all_gather on comm")));
}

TEST(SimBackend, waiting_holds_up_the_current_stream_and_neither_others_nor_the_host) {
  spawn_ranks(2, [](const Group& group) {
    const int rank = group->rank();
    const c10::Stream side = new_stream(rank, "side");
    const Tensor x = ranks_values(group, 4);
    Tensor gathered = torch::empty({2, 4}, x.options());
    reset_counters(rank);
    Pending pending = all_gather(group, gathered, x, "gather");
    {
      const c10::StreamGuard entered(side);
      pending.wait();
      gathered + 1;
    }
    EXPECT_EQ(counters(rank).host_waits(), 0);
    gathered + 1;
  });
  const auto findings = take_findings();
  EXPECT_FALSE(findings.empty());
  for (const std::string& finding : findings)
    EXPECT_THAT(finding, HasSubstr("the default stream of device"));
}

TEST(SimBackend, a_collective_keeps_its_tensors) {
  spawn_ranks(2, [](const Group& group) {
    Tensor gathered = torch::empty({2, 4}, ranks_values(group, 4).options());
    Pending pending = all_gather(group, gathered, ranks_values(group, 4), "gather");
    ranks_values(group, 4);  // would take the memory of the input
    pending.wait();
    EXPECT_TRUE(gathered[1].eq(2).all().item<bool>());
  });
  EXPECT_THAT(take_findings(), IsEmpty());
}

TEST(SimBackend, tensors_of_other_devices_are_refused) {
  try {
    spawn_ranks(2, [](const Group& group) {
      Tensor on_host = torch::ones({4});
      all_reduce(group, on_host, internal::ReduceOp::kSum, "sum").wait();
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("got a tensor on cpu"));
  }
}

}  // namespace
}  // namespace fsdp::test::sim
