// SPDX-License-Identifier: Apache-2.0
// The allocator of the simulated device, and copies between it and the host.
#include <cstring>

#include "tests/sim_device/sim_test.h"

namespace fsdp::test::sim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class SimMemory : public SimDevice {
 protected:
  // Returns memory of a size that no other test has.
  torch::Tensor block() const {
    const auto name = std::string(testing::UnitTest::GetInstance()->current_test_info()->name());
    return values({10'000 * static_cast<std::int64_t>(name.size())});
  }
};

TEST_F(SimMemory, a_freed_block_is_reused_on_its_stream) {
  torch::Tensor x = block();
  const void* const address = x.const_data_ptr();
  x.reset();
  EXPECT_EQ(block().const_data_ptr(), address);
  on(side_, [&] { EXPECT_NE(block().const_data_ptr(), address); });
  EXPECT_THAT(take_findings(), IsEmpty());
}

TEST_F(SimMemory, reuse_without_record_stream_is_reported) {
  torch::Tensor x = block();
  order_by_event(main_, side_);
  on(side_, [&] { x + 1; });
  x.reset();
  block();
  EXPECT_THAT(take_findings(),
              ElementsAre(HasSubstr("the allocation on the default stream of device 0 writes what "
                                    "is read by aten::add on side of device 0")));
}

TEST_F(SimMemory, a_recorded_block_is_held_until_the_host_knows_that_its_use_is_over) {
  torch::Tensor x = block();
  const void* const address = x.const_data_ptr();
  order_by_event(main_, side_);
  on(side_, [&] { x + 1; });
  x.record_stream(side_);
  reset_counters(0);
  const auto before = counters(0).memory;
  x.reset();
  EXPECT_LT(counters(0).memory.live_bytes, before.live_bytes);
  EXPECT_EQ(counters(0).memory.held_bytes, before.held_bytes);
  const torch::Tensor other = block();
  EXPECT_NE(other.const_data_ptr(), address);
  const auto held = counters(0).memory.held_bytes;
  guard_.synchronizeStream(side_);
  EXPECT_LT(counters(0).memory.held_bytes, held);
  EXPECT_EQ(block().const_data_ptr(), address);
  EXPECT_THAT(take_findings(), IsEmpty());
  EXPECT_EQ(counters(0).recorded_on_streams, 0) << "counted after the counters began anew";
}

TEST_F(SimMemory, on_an_eager_device_a_recorded_block_is_free_at_once) {
  set_progress(Progress::kEager);
  torch::Tensor x = block();
  const void* const address = x.const_data_ptr();
  order_by_event(main_, side_);
  on(side_, [&] { x + 1; });
  x.record_stream(side_);
  x.reset();
  EXPECT_EQ(block().const_data_ptr(), address);
  EXPECT_THAT(take_findings(), IsEmpty());
}

TEST_F(SimMemory, freed_memory_is_poisoned_and_its_use_is_reported) {
  torch::Tensor x = block();
  // A storage that does not own its memory, as the module's tensors in a gathered unit.
  const torch::Tensor stray = torch::from_blob(x.data_ptr(), {4}, x.options().dtype(torch::kFloat));
  x.reset();
  EXPECT_TRUE(stray.cpu().isnan().all().item<bool>());
  EXPECT_THAT(take_findings(),
              ElementsAre(HasSubstr("use after free: a copy to the host on the default stream")));
}

TEST_F(SimMemory, fresh_memory_is_poisoned) {
  const auto x = torch::empty({4}, torch::TensorOptions().device(device_));
  EXPECT_TRUE(x.cpu().isnan().all().item<bool>());
}

TEST_F(SimMemory, memory_is_counted_by_stream_with_its_peak) {
  reset_counters(0);
  const auto before = counters(0).memory;
  on(side_, [&] { torch::empty({1024}, torch::TensorOptions().device(device_)); });
  const Counters found = counters(0);
  EXPECT_EQ(found.memory_of.at("side").allocations, 1);
  EXPECT_EQ(found.memory_of.at("side").peak_live_bytes, 4096);
  EXPECT_EQ(found.memory_of.at("side").live_bytes, 0);
  EXPECT_EQ(found.memory.allocations, 1);
  EXPECT_EQ(found.memory.live_bytes, before.live_bytes);
  EXPECT_EQ(found.memory.peak_live_bytes, before.live_bytes + 4096);
}

// ---- copies

TEST_F(SimMemory, copies_to_memory_that_is_not_pinned_make_the_host_wait) {
  const torch::Tensor x = values({16});
  reset_counters(0);
  torch::Tensor on_host = torch::empty({16});
  on_host.copy_(x, /*non_blocking=*/true);
  EXPECT_TRUE(on_host.eq(2).all().item<bool>());
  EXPECT_EQ(counters(0).copy_waits, 1);
  values({16}).copy_(on_host, /*non_blocking=*/true);
  EXPECT_EQ(counters(0).copy_waits, 1);
  values({16}).copy_(on_host);
  EXPECT_EQ(counters(0).copy_waits, 2);
}

TEST_F(SimMemory, a_copy_to_pinned_memory_arrives_when_the_host_has_waited) {
  torch::Tensor pinned = torch::empty({16}, torch::TensorOptions().pinned_memory(true));
  ASSERT_TRUE(pinned.is_pinned());
  pinned.copy_(values({16}), /*non_blocking=*/true);
  EXPECT_TRUE(pinned.isnan().all().item<bool>());
  EXPECT_EQ(counters(0).copy_waits, 0);
  EXPECT_EQ(counters(0).unwaited_copies, 1);
  guard_.synchronizeStream(main_);
  EXPECT_TRUE(pinned.eq(2).all().item<bool>());
}

TEST_F(SimMemory, pinned_memory_must_not_change_before_a_copy_of_it_is_over) {
  torch::Tensor pinned = torch::ones({16}, torch::TensorOptions().pinned_memory(true));
  torch::Tensor x = values({16});
  x.copy_(pinned, /*non_blocking=*/true);
  pinned.fill_(9);
  guard_.synchronizeStream(main_);
  EXPECT_THAT(take_findings(), ElementsAre(HasSubstr("the host changed pinned memory before")));
  x.copy_(pinned, /*non_blocking=*/true);
  guard_.synchronizeStream(main_);
  pinned.fill_(1);
  EXPECT_THAT(take_findings(), IsEmpty());
}

TEST_F(SimMemory, pinned_memory_that_is_freed_outlives_its_copies) {
  torch::Tensor pinned = torch::ones({16}, torch::TensorOptions().pinned_memory(true));
  torch::Tensor x = values({16});
  x.copy_(pinned, /*non_blocking=*/true);
  pinned.copy_(x, /*non_blocking=*/true);
  pinned.reset();
  guard_.synchronizeStream(main_);
  EXPECT_TRUE(x.eq(1).all().item<bool>());
}

TEST_F(SimMemory, a_copy_to_another_dtype_goes_through_memory_that_is_not_pinned) {
  torch::Tensor pinned =
      torch::empty({16}, torch::TensorOptions().dtype(torch::kDouble).pinned_memory(true));
  reset_counters(0);
  pinned.copy_(values({16}), /*non_blocking=*/true);
  EXPECT_TRUE(pinned.eq(2).all().item<bool>());
  EXPECT_EQ(counters(0).copy_waits, 1);
}

}  // namespace
}  // namespace fsdp::test::sim
