// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/trace/device_clock.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace fsdp::internal {
namespace {

constexpr std::chrono::seconds kAnchorHolds{1};

}  // namespace

DeviceClock::DeviceClock(c10::Device device) : device_(device), anchor_(mark()) {
  anchor_->synchronize();
  anchor_time_ = Clock::now();
}

DeviceClock::Mark DeviceClock::mark() const {
  auto event =
      std::make_shared<c10::Event>(device_.type(), c10::EventFlag::BACKEND_DEFAULT);  // with a time
  event->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  return event;
}

std::optional<DeviceClock::Clock::time_point> DeviceClock::time_of(const Mark& mark, bool waits) {
  if (waits) mark->synchronize();
  if (!mark->query()) return std::nullopt;
  const auto since = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double, std::milli>(anchor_->elapsedTime(*mark)));
  const Clock::time_point time = anchor_time_ + since;
  if (since > kAnchorHolds) {
    anchor_ = mark;
    anchor_time_ = time;
  }
  return time;
}

}  // namespace fsdp::internal
