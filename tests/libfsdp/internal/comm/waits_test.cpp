// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/waits.h"

#include <chrono>
#include <memory>
#include <thread>

#include <ATen/Functions.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libfsdp/internal/comm/group_internals.h"
#include "tests/libfsdp/error_of.h"
#include "tests/support/sim_device/counters.h"
#include "tests/support/sim_device/timeline.h"
#include "tests/support/spawn_ranks.h"
#include "tests/support/test_device.h"

namespace fsdp {
using namespace internal;
namespace {

using test::spawn_ranks;
using Group = std::shared_ptr<ProcessGroup>;

// Returns an event after work of this rank.
c10::Event after_work(const Group& group) {
  const c10::Device device = test::device_of_rank(group->rank());
  at::ones({8}, at::TensorOptions().device(device));
  c10::Event event(device.type());
  event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return event;
}

TEST(DeviceWait, ends_when_the_device_has_come_so_far) {
  spawn_ranks(2, [](const Group& group) {
    const c10::Event event = after_work(group);
    EXPECT_FALSE(event.query());
    wait_for_event(*group, event, "all-gather of head");
    EXPECT_TRUE(event.query());
    EXPECT_EQ(test::sim::counters(group->rank()).event_waits, 1);
  });
}

TEST(DeviceWait, names_a_rank_that_failed) {
  test::sim::set_progress(test::sim::Progress::kStuck);
  spawn_ranks(2, [](const Group& group) {
    if (group->rank() == 1) {
      monitor_of(*group).failed("no memory left");
      while (!monitor_of(*group).any_failed())
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      return;
    }
    const c10::Event event = after_work(group);
    const std::string error =
        error_of([&] { wait_for_event(*group, event, "all-gather of head"); });
    EXPECT_EQ(error, "all-gather of head: another rank failed; rank 1 failed: no memory left");
    monitor_of(*group).failed(error);
  });
}

TEST(DeviceWait, ends_at_the_timeout) {
  test::sim::set_progress(test::sim::Progress::kStuck);
  spawn_ranks(
      1,
      [](const Group& group) {
        const c10::Event event = after_work(group);
        EXPECT_THAT(error_of([&] { wait_for_event(*group, event, "all-gather of head"); }),
                    testing::StartsWith("all-gather of head: the device was not done within 2 s"));
      },
      std::chrono::seconds(2));
}

}  // namespace
}  // namespace fsdp
