// SPDX-License-Identifier: Apache-2.0
// Records the operations that the queues of an accelerator get, with a fake device.
#include "libfsdp/internal/engine/streams.h"

#include <cstdint>
#include <vector>

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdp {
using namespace internal;
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr auto kDevice = c10::DeviceType::PrivateUse1;

// Streams and events are numbers.
struct Log {
  std::intptr_t events = 0;               // recorded so far; an event is its number
  std::vector<std::intptr_t> waited_for;  // by the CPU
  std::vector<std::pair<std::int64_t, std::intptr_t>> blocked;  // stream, event
};

Log& device_log() {
  static Log instance;
  return instance;
}

class WritingGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kDevice; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return {kDevice, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, ++streams_);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return getStream(stream.device());
  }
  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    *event = reinterpret_cast<void*>(++device_log().events);
  }
  void block(void* event, const c10::Stream& stream) const override {
    device_log().blocked.emplace_back(stream.id(), reinterpret_cast<std::intptr_t>(event));
  }
  void synchronizeEvent(void* event) const override {
    device_log().waited_for.push_back(reinterpret_cast<std::intptr_t>(event));
  }
  bool queryEvent(void*) const override { return false; }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}

 private:
  mutable std::int64_t streams_ = 0;
};

const c10::impl::DeviceGuardImplRegistrar registrar(kDevice, new WritingGuard);

class StreamsOfADevice : public ::testing::Test {
 protected:
  StreamsOfADevice() { device_log() = {}; }
};

// limit_all_gathers: the CPU does not run ahead by more than two units that are still in use.
TEST_F(StreamsOfADevice, a_throttled_one_waits_for_all_freed_units_but_the_last_two) {
  Streams streams({kDevice, 0}, /*throttled=*/true);
  streams.resharded();
  streams.resharded();
  streams.throttle();
  EXPECT_THAT(device_log().waited_for, IsEmpty());
  streams.resharded();
  streams.resharded();
  streams.throttle();
  EXPECT_THAT(device_log().waited_for, ElementsAre(1, 2));
  streams.throttle();
  EXPECT_THAT(device_log().waited_for, ElementsAre(1, 2));
}

TEST_F(StreamsOfADevice, one_that_is_not_throttled_never_waits) {
  Streams streams({kDevice, 0}, /*throttled=*/false);
  for (int unit = 0; unit < 8; ++unit) streams.resharded();
  streams.throttle();
  EXPECT_THAT(device_log().waited_for, IsEmpty());
}

TEST_F(StreamsOfADevice, order_holds_up_the_later_lane_alone) {
  Streams streams({kDevice, 0}, true);
  streams.order(Lane::kCompute, Lane::kUnshard);
  streams.order(Lane::kUnshard, Lane::kReduce);
  ASSERT_EQ(device_log().blocked.size(), 2U);
  const auto [unshard, first] = device_log().blocked[0];
  const auto [reduce, second] = device_log().blocked[1];
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 2);
  EXPECT_NE(unshard, 0) << "the caller's own stream waits";
  EXPECT_NE(reduce, 0) << "the caller's own stream waits";
  EXPECT_NE(unshard, reduce);
  EXPECT_THAT(device_log().waited_for, IsEmpty());
}

}  // namespace
}  // namespace fsdp
