// SPDX-License-Identifier: Apache-2.0
// Buffers that are lent again, on the CPU and on a simulated device.
#include "libfsdp/internal/engine/buffers.h"

#include <utility>

#include <ATen/Functions.h>
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

constexpr std::int64_t kMebi = std::int64_t{1} << 20;

class BuffersOfTheCpu : public ::testing::Test {
 protected:
  at::Tensor take(std::int64_t bytes, Use use = Use::kParameters) {
    return buffers_.take(bytes, use, Lane::kUnshard);
  }
  void give(at::Tensor&& buffer, Use use = Use::kParameters) {
    buffers_.give(std::move(buffer), use, Lane::kUnshard);
  }

  Streams streams_{c10::Device(c10::kCPU)};
  Buffers buffers_{streams_, /*limited=*/true};
};

TEST_F(BuffersOfTheCpu, are_lent_again_for_any_use) {
  at::Tensor first = take(5 * kMebi);
  const void* const address = first.const_data_ptr();
  EXPECT_EQ(buffers_.lent_bytes(Use::kParameters), 5 * kMebi);
  give(std::move(first));
  EXPECT_EQ(buffers_.lent_bytes(Use::kParameters), 0);
  EXPECT_EQ(buffers_.free_bytes(), 5 * kMebi);
  const at::Tensor again = take(4 * kMebi, Use::kGradients);
  EXPECT_EQ(again.const_data_ptr(), address);
  EXPECT_EQ(again.numel(), 4 * kMebi);
  EXPECT_EQ(buffers_.free_count(), 0U);
}

TEST_F(BuffersOfTheCpu, one_that_is_lent_is_not_lent_to_another) {
  const at::Tensor first = take(100);
  EXPECT_NE(take(100).const_data_ptr(), first.const_data_ptr());
}

TEST_F(BuffersOfTheCpu, a_much_larger_one_is_kept_for_who_needs_it) {
  at::Tensor small = take(kMebi);
  at::Tensor large = take(8 * kMebi);
  const void* const address = large.const_data_ptr();
  give(std::move(large));
  give(std::move(small));
  EXPECT_NE(take(2 * kMebi).const_data_ptr(), address);
}

// Units of many sizes.
TEST_F(BuffersOfTheCpu, free_ones_are_bounded_by_what_was_lent_at_once) {
  constexpr std::int64_t kLargest = 90;
  for (int round = 0; round < 3; ++round) {
    for (std::int64_t size = 2; size < kLargest; size = size * 3 / 2) {
      at::Tensor one = take(size * kMebi);
      at::Tensor other = take(size * kMebi);
      give(std::move(one));
      give(std::move(other));
      EXPECT_LE(buffers_.free_bytes(), 4 * (round == 0 ? size : kLargest) * kMebi);
    }
    for (std::int64_t size = kLargest; size > 1; size = size * 2 / 3) {
      at::Tensor one = take(size * kMebi);
      at::Tensor other = take(size * kMebi);
      give(std::move(one));
      give(std::move(other));
      EXPECT_LE(buffers_.free_bytes(), 4 * kLargest * kMebi);
    }
  }
}

TEST_F(BuffersOfTheCpu, an_abandoned_one_is_not_lent_again) {
  at::Tensor buffer = take(100);
  const at::Tensor kept = buffer;
  buffers_.abandon(std::move(buffer), Use::kParameters, Lane::kUnshard);
  EXPECT_EQ(buffers_.lent_bytes(Use::kParameters), 0);
  EXPECT_EQ(buffers_.free_count(), 0U);
}

// ---- of a device

class BuffersOfADevice : public ::testing::Test {
 protected:
  // Writes all of a buffer on a lane.
  void write(const at::Tensor& buffer, Lane lane) {
    const auto entered = streams_.enter(lane);
    buffer.fill_(1);
  }
  // Takes a buffer for kUnshard that is given back while kCompute writes it.
  at::Tensor written_by_compute(Buffers& buffers) {
    at::Tensor buffer = buffers.take(kMebi, Use::kParameters, Lane::kUnshard);
    streams_.order(Lane::kUnshard, Lane::kCompute);
    write(buffer, Lane::kCompute);
    return buffer;
  }

  const c10::Device device_ = sim::device_at(0);
  Streams streams_{device_};
};

TEST_F(BuffersOfADevice, come_after_the_streams_that_used_them) {
  Buffers buffers(streams_, /*limited=*/true);
  buffers.give(written_by_compute(buffers), Use::kParameters, Lane::kUnshard,
               {streams_.id(Lane::kCompute)});
  sim::reset_counters(0);
  write(buffers.take(kMebi, Use::kParameters, Lane::kUnshard), Lane::kUnshard);
  EXPECT_THAT(sim::take_findings(), IsEmpty());
  EXPECT_EQ(sim::counters(0).host_waits(), 0);
  EXPECT_EQ(sim::counters(0).memory.allocations, 0);
}

TEST_F(BuffersOfADevice, a_user_that_is_not_named_is_found) {
  Buffers buffers(streams_, /*limited=*/true);
  buffers.give(written_by_compute(buffers), Use::kParameters, Lane::kUnshard);
  write(buffers.take(kMebi, Use::kParameters, Lane::kUnshard), Lane::kUnshard);
  EXPECT_THAT(sim::take_findings(), ElementsAre(HasSubstr("writes what is written by")));
}

TEST_F(BuffersOfADevice, are_kept_for_the_lane_they_were_given_for) {
  Buffers buffers(streams_, /*limited=*/true);
  at::Tensor first = buffers.take(kMebi, Use::kGradients, Lane::kReduce);
  const at::Tensor kept = first;
  buffers.give(std::move(first), Use::kGradients, Lane::kReduce);
  const at::Tensor other = buffers.take(kMebi, Use::kGradients, Lane::kCompute);
  EXPECT_FALSE(other.is_alias_of(kept));
  EXPECT_TRUE(buffers.take(kMebi, Use::kGradients, Lane::kReduce).is_alias_of(kept));
}

TEST_F(BuffersOfADevice, without_a_limit_a_gather_waits_for_no_buffer) {
  Buffers buffers(streams_, /*limited=*/false);
  at::Tensor first = written_by_compute(buffers);
  const at::Tensor kept = first;
  buffers.give(std::move(first), Use::kParameters, Lane::kUnshard, {streams_.id(Lane::kCompute)});
  const at::Tensor second = buffers.take(kMebi, Use::kParameters, Lane::kUnshard);
  EXPECT_FALSE(second.is_alias_of(kept));
  write(second, Lane::kUnshard);
  EXPECT_THAT(sim::take_findings(), IsEmpty());
}

// The allocator would give the memory to others while it is used.
TEST_F(BuffersOfADevice, that_are_still_used_outlive_their_owner) {
  {
    Buffers buffers(streams_, /*limited=*/true);
    buffers.give(written_by_compute(buffers), Use::kParameters, Lane::kUnshard,
                 {streams_.id(Lane::kCompute)});
  }
  const auto entered = streams_.enter(Lane::kUnshard);
  at::empty({kMebi}, at::TensorOptions().dtype(at::kByte).device(device_)).fill_(2);
  EXPECT_THAT(sim::take_findings(), IsEmpty());
}

}  // namespace
}  // namespace fsdp
