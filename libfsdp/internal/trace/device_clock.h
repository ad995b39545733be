// SPDX-License-Identifier: Apache-2.0
// Tells when a device begins and ends work, which the host learns only afterwards.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include <c10/core/Device.h>
#include <c10/core/Event.h>

namespace fsdp::internal {

class DeviceClock {
 public:
  using Clock = std::chrono::steady_clock;
  // A point in the work of a stream.
  using Mark = std::shared_ptr<const c10::Event>;

  // Waits for the work on the current stream, to set the device's clock by the host's.
  // Requires: an accelerator.
  explicit DeviceClock(c10::Device device);

  // Marks the current stream.
  Mark mark() const;
  // Returns the host's time at which the stream came to the mark.  If it has not come there: waits
  // if `waits`, else returns nullopt.
  std::optional<Clock::time_point> time_of(const Mark& mark, bool waits);

 private:
  const c10::Device device_;
  // The mark that times count from.  They are float32 milliseconds, so a long trace moves it on.
  Mark anchor_;
  Clock::time_point anchor_time_;
};

}  // namespace fsdp::internal
