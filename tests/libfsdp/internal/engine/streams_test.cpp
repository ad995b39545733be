// SPDX-License-Identifier: Apache-2.0
// The queues of an accelerator, on a simulated one.
#include "libfsdp/internal/engine/streams.h"

#include <utility>

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
  // Writes a tensor on a lane.
  void write(Streams& streams, Lane lane) {
    const auto entered = streams.enter(lane);
    tensor_.fill_(1);
  }

  const c10::Device device_ = sim::device_at(0);
  at::Tensor tensor_ = at::ones({8}, at::TensorOptions().device(device_));
};

TEST_F(StreamsOfADevice, order_holds_up_the_later_lane_alone) {
  Streams streams(device_);
  streams.order(Lane::kCompute, Lane::kUnshard);
  write(streams, Lane::kUnshard);
  EXPECT_THAT(sim::take_findings(), IsEmpty());
  write(streams, Lane::kReduce);
  EXPECT_THAT(sim::take_findings(), ElementsAre(HasSubstr("writes what is written by")));
  EXPECT_EQ(sim::counters(0).host_waits(), 0);
}

TEST_F(StreamsOfADevice, a_point_holds_up_the_lane_that_passes_it) {
  Streams streams(device_);
  streams.order(Lane::kCompute, Lane::kReduce);
  write(streams, Lane::kReduce);
  StreamPoint point = streams.mark(streams.id(Lane::kReduce));
  streams.pass(std::move(point), Lane::kUnshard);
  write(streams, Lane::kUnshard);
  EXPECT_THAT(sim::take_findings(), IsEmpty());
}

// A graph could not wait for an event from before it was captured.
TEST_F(StreamsOfADevice, nothing_waits_for_a_point_that_it_is_after_already) {
  Streams streams(device_);
  StreamPoint before = streams.mark(streams.id(Lane::kCompute));
  streams.order(Lane::kCompute, Lane::kUnshard);
  write(streams, Lane::kCompute);
  StreamPoint after = streams.mark(streams.id(Lane::kCompute));
  streams.pass(std::move(before), Lane::kUnshard);
  write(streams, Lane::kUnshard);
  EXPECT_THAT(sim::take_findings(), ElementsAre(HasSubstr("writes what is written by")));
  streams.pass(std::move(after), Lane::kUnshard);
  write(streams, Lane::kUnshard);
  EXPECT_THAT(sim::take_findings(), IsEmpty());
}

TEST_F(StreamsOfADevice, events_are_recorded_again) {
  Streams streams(device_);
  streams.order(Lane::kCompute, Lane::kUnshard);
  const auto alive = sim::counters(0).events_alive;
  for (int i = 0; i < 8; ++i) streams.order(Lane::kCompute, Lane::kUnshard);
  EXPECT_EQ(sim::counters(0).events_alive, alive);
}

TEST_F(StreamsOfADevice, inside_of_a_lane_the_compute_lane_is_still_the_callers) {
  Streams streams(device_);
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
  Streams streams(device_);
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
