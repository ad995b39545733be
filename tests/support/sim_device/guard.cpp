// SPDX-License-Identifier: Apache-2.0
// Current devices, streams and events of the simulated device, as c10 asks for them.
#include <array>
#include <cstdint>
#include <utility>

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include "tests/support/sim_device/arena.h"
#include "tests/support/sim_device/counting.h"
#include "tests/support/sim_device/device.h"
#include "tests/support/sim_device/device_allocator.h"
#include "tests/support/sim_device/lock.h"
#include "tests/support/sim_device/timeline.h"

namespace fsdp::test::sim {
namespace {

constexpr c10::StreamId kPooled = 32;  // of each priority, as on CUDA

struct EventState {
  Mark mark;
  std::int64_t asked_at = -1;  // kernels queued when somebody asked about it
};

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return device_at(current_device()); }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.is_privateuseone(), "expected a simulated device, but got ", device);
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) set_current_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(device_count());
  }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    count_wait(device, &Counters::stream_waits);
    synchronize(device);
  }

  c10::Stream getStream(c10::Device device) const override {
    return current_stream(index_of(device));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device_at(index_of(device)));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    const Lock lock;
    static auto* const next = new std::array<std::array<c10::StreamId, 2>, kMostDevices>{};
    c10::StreamId& id =
        next->at(static_cast<std::size_t>(index_of(device))).at(high_priority ? 1 : 0);
    return c10::Stream(c10::Stream::UNSAFE, device_at(index_of(device)),
                       1 + (high_priority ? kPooled : 0) + id++ % kPooled);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return new_stream(index_of(device), "a new stream");
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = current_stream(stream.device_index());
    set_current_stream(stream);
    return before;
  }
  bool queryStream(const c10::Stream& stream) const override {
    const Lock lock;
    if (refuse_question(mark_of(stream))) return true;
    const int place = place_of(stream);
    if (progress() == Progress::kEager) learn(stream.device_index(), clock_of(place));
    return host_knows(stream.device_index(), place, clock_of(place).at(place));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    wait_on_host(mark_of(stream), &Counters::stream_waits);
  }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    record_on_stream(memory, stream);
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    const Lock lock;
    Counters& counters = counting(stream.device_index());
    if (*event == nullptr) {
      *event = new EventState;
      ++counters.events_alive;
    }
    ++counters.events_recorded;
    *static_cast<EventState*>(*event) = {mark_of(stream), -1};
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) wait_on_stream(stream, static_cast<EventState*>(event)->mark);
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    const Lock lock;
    auto& state = *static_cast<EventState*>(event);
    if (refuse_question(state.mark)) return true;
    const auto& [stream, clock, capture] = state.mark;
    const int device = device_of_stream(stream);
    if (host_knows(device, stream, clock.at(stream))) return true;
    if (progress() == Progress::kStuck) return false;
    if (progress() == Progress::kEager) {
      learn(device, clock);
    } else if (std::exchange(state.asked_at, counting(device).kernels) ==
               counting(device).kernels) {
      wait_on_host(state.mark, &Counters::event_waits);
    } else {
      return false;
    }
    return true;
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    wait_on_host(static_cast<EventState*>(event)->mark, &Counters::event_waits);
  }
  // InlineEvent checks that both have happened.
  double elapsedTime(void* earlier, void* later, c10::DeviceIndex) const override {
    const Lock lock;
    const auto over_at = [](void* event) {
      return static_cast<EventState*>(event)->mark.clock.over_at();
    };
    return 1000.0 * static_cast<double>(over_at(later) - over_at(earlier));
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    if (event == nullptr) return;
    const Lock lock;
    auto* const state = static_cast<EventState*>(event);
    --counting(device_of_stream(state->mark.stream)).events_alive;
    delete state;
  }

 private:
  static int index_of(c10::Device device) {
    return device.has_index() ? device.index() : current_device();
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace
}  // namespace fsdp::test::sim
