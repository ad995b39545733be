// SPDX-License-Identifier: Apache-2.0
// The queues of an accelerator, on a simulated one.
#include "libfsdp/internal/engine/streams.h"

#include <ATen/Functions.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/sim_device/counters.h"
#include "tests/support/sim_device/device.h"
#include "tests/support/sim_device/findings.h"
#include "tests/support/sim_device/timeline.h"

namespace fsdp {
using namespace internal;
namespace {

namespace sim = test::sim;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class StreamsOfADevice : public ::testing::Test {
 protected:
  // Returns how many events throttle() waits for.
  static int waits_of(Streams& streams) {
    int count = 0;
    streams.throttle([&](const c10::Event&) { ++count; });
    return count;
  }
  // Writes a tensor on a lane.
  void write(Streams& streams, Lane lane) {
    const auto entered = streams.enter(lane);
    tensor_.fill_(1);
  }

  const c10::Device device_ = sim::device_at(0);
  at::Tensor tensor_ = at::ones({8}, at::TensorOptions().device(device_));
};

// limit_all_gathers: the CPU does not run ahead by more than two gathers that are still in use.
TEST_F(StreamsOfADevice, a_throttled_one_waits_for_all_resharded_gathers_but_the_last) {
  Streams streams(device_, /*throttled=*/true);
  EXPECT_EQ(waits_of(streams), 0);
  streams.resharded(1);
  EXPECT_EQ(waits_of(streams), 0);
  streams.resharded(2);
  streams.resharded(3);
  EXPECT_EQ(waits_of(streams), 2);
  EXPECT_EQ(waits_of(streams), 0);
}

TEST_F(StreamsOfADevice, units_of_one_gather_count_as_one) {
  Streams streams(device_, true);
  for (int unit = 0; unit < 8; ++unit) streams.resharded(1);
  EXPECT_EQ(waits_of(streams), 0);
  streams.resharded(2);
  EXPECT_EQ(waits_of(streams), 1);
}

TEST_F(StreamsOfADevice, one_that_is_not_throttled_never_waits_and_keeps_no_event) {
  const auto before = sim::counters(0).events_alive;
  Streams streams(device_, /*throttled=*/false);
  for (int unit = 0; unit < 8; ++unit) streams.resharded(unit);
  EXPECT_EQ(waits_of(streams), 0);
  EXPECT_EQ(sim::counters(0).events_alive, before);
}

TEST_F(StreamsOfADevice, order_holds_up_the_later_lane_alone) {
  Streams streams(device_, true);
  streams.order(Lane::kCompute, Lane::kUnshard);
  write(streams, Lane::kUnshard);
  EXPECT_THAT(sim::take_findings(), IsEmpty());
  write(streams, Lane::kReduce);
  EXPECT_THAT(sim::take_findings(), ElementsAre(HasSubstr("writes what is written by")));
  EXPECT_EQ(sim::counters(0).host_waits(), 0);
}

TEST_F(StreamsOfADevice, inside_of_a_lane_the_compute_lane_is_still_the_callers) {
  Streams streams(device_, true);
  {
    const auto entered = streams.enter(Lane::kUnshard);
    EXPECT_FALSE(streams.follows_caller());
    streams.order(Lane::kCompute, Lane::kUnshard);
    tensor_.fill_(1);
    streams.order(Lane::kUnshard, Lane::kCompute);
  }
  EXPECT_TRUE(streams.follows_caller());
  tensor_.fill_(2);
  EXPECT_THAT(sim::take_findings(), IsEmpty());
}

TEST_F(StreamsOfADevice, the_compute_lane_follows_the_caller_when_it_is_told_to) {
  Streams streams(device_, true);
  const c10::Stream side = sim::new_stream(0, "side");
  const c10::StreamGuard entered(side);
  EXPECT_FALSE(streams.follows_caller());
  EXPECT_NE(streams.stream(Lane::kCompute), side);
  streams.follow_caller();
  EXPECT_TRUE(streams.follows_caller());
  EXPECT_EQ(streams.stream(Lane::kCompute), side);
}

}  // namespace
}  // namespace fsdp
