// SPDX-License-Identifier: Apache-2.0
#include "tests/support/sim_device/timeline.h"

#include <array>
#include <map>
#include <utility>
#include <vector>

#include "tests/support/sim_device/arena.h"
#include "tests/support/sim_device/call_chain.h"
#include "tests/support/sim_device/counting.h"
#include "tests/support/sim_device/device.h"
#include "tests/support/sim_device/host_copies.h"
#include "tests/support/sim_device/lock.h"

namespace fsdp::test::sim {
namespace {

// Beyond the identities of pooled streams.
constexpr c10::StreamId kFirstNewStream = 1000;

struct StreamState {
  int device = 0;
  std::string name;
  Clock clock;
};

struct Timeline {
  Progress progress = Progress::kLate;
  std::vector<StreamState> streams;
  std::map<std::pair<int, c10::StreamId>, int> places;
  std::array<Clock, kMostDevices> host;  // what the host knows of each device
  c10::StreamId next_stream = kFirstNewStream;
};

Timeline& timeline() {
  static auto* const instance = new Timeline;
  return *instance;
}

thread_local int the_current_device = 0;
thread_local std::array<c10::StreamId, kMostDevices> the_current_streams{};

StreamState& state_of(int stream) {
  return timeline().streams.at(static_cast<std::size_t>(stream));
}

Clock& host_clock(int device) {
  return timeline().host.at(static_cast<std::size_t>(device));
}

c10::Stream stream_with(int device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, device_at(device), id);
}

}  // namespace

void set_progress(Progress progress) {
  const Lock lock;
  timeline().progress = progress;
}

Progress progress() {
  const Lock lock;
  return timeline().progress;
}

int place_of(const c10::Stream& stream) {
  const Lock lock;
  const auto next = static_cast<int>(timeline().streams.size());
  const auto [found, fresh] = timeline().places.emplace(
      std::pair<int, c10::StreamId>(stream.device_index(), stream.id()), next);
  if (fresh) {
    const std::string name =
        stream.id() == 0 ? "the default stream" : "stream " + std::to_string(stream.id());
    timeline().streams.push_back({stream.device_index(), name, {}});
  }
  return found->second;
}

void name_stream(const c10::Stream& stream, const std::string& name) {
  const Lock lock;
  state_of(place_of(stream)).name = name;
}

std::string stream_name(int stream) {
  const Lock lock;
  return state_of(stream).name;
}

std::string full_stream_name(int stream) {
  const Lock lock;
  return state_of(stream).name + " of device " + std::to_string(state_of(stream).device);
}

int device_of_stream(int stream) {
  const Lock lock;
  return state_of(stream).device;
}

c10::Stream new_stream(int device, const std::string& name) {
  const Lock lock;
  const c10::Stream result = stream_with(device, timeline().next_stream++);
  name_stream(result, name);
  return result;
}

int current_device() {
  return the_current_device;
}

void set_current_device(int device) {
  the_current_device = device;
}

c10::Stream current_stream(int device) {
  return stream_with(device, the_current_streams.at(static_cast<std::size_t>(device)));
}

void set_current_stream(const c10::Stream& stream) {
  the_current_streams.at(static_cast<std::size_t>(stream.device_index())) = stream.id();
}

Access begin_kernel(const c10::Stream& stream, const char* name) {
  const int chain = call_chain();
  const Lock lock;
  const int place = place_of(stream);
  Clock& clock = state_of(place).clock;
  clock.merge(host_clock(stream.device_index()));
  return {place, clock.tick(place), name, chain};
}

Clock clock_of(const c10::Stream& stream) {
  const Lock lock;
  Clock result = state_of(place_of(stream)).clock;
  result.merge(host_clock(stream.device_index()));
  return result;
}

Clock clock_of(int stream) {
  const Lock lock;
  return state_of(stream).clock;
}

void wait_on_stream(const c10::Stream& stream, const Clock& clock) {
  const Lock lock;
  state_of(place_of(stream)).clock.merge(clock);
}

void order(const c10::Stream& earlier, const c10::Stream& later) {
  const Lock lock;
  wait_on_stream(later, clock_of(earlier));
}

void wait_on_host(int device, const Clock& clock, std::int64_t Counters::*kind) {
  count_wait(device, kind);
  learn(device, clock);
}

void synchronize(int device) {
  const Lock lock;
  Clock all;
  for (const StreamState& stream : timeline().streams) {
    if (stream.device == device) all.merge(stream.clock);
  }
  learn(device, all);
}

void learn(int device, const Clock& clock) {
  const Lock lock;
  host_clock(device).merge(clock);
  deliver_host_copies(device);
}

bool host_knows(int device, int stream, std::uint32_t time) {
  const Lock lock;
  return host_clock(device).at(stream) >= time;
}

}  // namespace fsdp::test::sim
