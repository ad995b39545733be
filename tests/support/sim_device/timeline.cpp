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
#include "tests/support/sim_device/findings.h"
#include "tests/support/sim_device/host_copies.h"
#include "tests/support/sim_device/lock.h"
#include "tests/support/sim_device/recording.h"

namespace fsdp::test::sim {
namespace {

// Beyond the identities of pooled streams.
constexpr c10::StreamId kFirstNewStream = 1000;

struct StreamState {
  int device = 0;
  std::string name;
  Clock clock = {};
  int capture = 0;                  // that it is part of
  Clock captured = {};              // its clock there
  std::uint32_t captured_work = 0;  // the time of its last work there
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

Access begin(const c10::Stream& stream, const char* name, bool is_work) {
  const int chain = call_chain();
  const Lock lock;
  const int place = place_of(stream);
  StreamState& state = state_of(place);
  Recording* const recording = recording_of(state.device);
  if (state.capture == 0) {
    if (recording != nullptr)
      report("in a capture: " + std::string(name) + " on " + full_stream_name(place) +
                 ", which is not part of it",
             {{"now", chain}});
    state.clock.merge(host_clock(state.device));
    return {place, state.clock.tick(place), name, chain};
  }
  Access access{place, state.captured.tick(place), name, chain, state.capture, -1};
  if (is_work) {
    access.node = recording->add(access);
    state.captured_work = access.time;
  }
  return access;
}

const char* waited_for(std::int64_t Counters::*kind) {
  if (kind == &Counters::event_waits) return "an event";
  if (kind == &Counters::stream_waits) return "a stream";
  if (kind == &Counters::copy_waits) return "a copy";
  return "a number";
}

// Returns whether the mark is of a capture, so that no work will reach it.  Reports the host's
// query of such a mark.
bool is_of_ended_capture(const Mark& mark) {
  if (mark.capture == 0) return false;
  report("the host waits for, or asks about, an event of " + full_stream_name(mark.stream) +
             " that was recorded in a capture",
         {{"now", call_chain()}});
  return true;
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
    timeline().streams.push_back({stream.device_index(), name});
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
  return begin(stream, name, /*is_work=*/true);
}

Access begin_allocation(const c10::Stream& stream) {
  return begin(stream, "the allocation", /*is_work=*/false);
}

Clock known_to(const Access& access) {
  const Lock lock;
  const StreamState& state = state_of(access.stream);
  return access.capture == 0 ? state.clock : state.captured;
}

Clock clock_of(int stream) {
  const Lock lock;
  return state_of(stream).clock;
}

Mark mark_of(const c10::Stream& stream) {
  const Lock lock;
  const int place = place_of(stream);
  const StreamState& state = state_of(place);
  if (state.capture != 0) return {place, state.captured, state.capture};
  Mark result{place, state.clock, 0};
  result.clock.merge(host_clock(state.device));
  return result;
}

void wait_on_stream(const c10::Stream& stream, const Mark& mark) {
  const Lock lock;
  const int place = place_of(stream);
  StreamState& state = state_of(place);
  const auto found = [&](const std::string& what) {
    report("in a capture: " + full_stream_name(place) + " waits for an event of " +
               full_stream_name(mark.stream) + ' ' + what,
           {{"now", call_chain()}});
  };
  if (state.capture == mark.capture) {
    (mark.capture == 0 ? state.clock : state.captured).merge(mark.clock);
  } else if (mark.capture == 0) {
    found("that was recorded outside of the capture");
  } else if (const Recording* const recording = recording_of(state.device);
             recording != nullptr && recording->number == mark.capture) {
    if (stream.id() == 0) found("of the capture, which the default stream cannot be part of");
    enter_capture(place, mark.capture, mark.clock);
  } else {
    found("that was recorded in another capture");
  }
}

void order(const c10::Stream& earlier, const c10::Stream& later) {
  const Lock lock;
  wait_on_stream(later, mark_of(earlier));
}

void wait_on_host(const Mark& mark, std::int64_t Counters::*kind) {
  const int device = device_of_stream(mark.stream);
  count_wait(device, kind);
  if (refuse_in_capture(device, std::string("the host waits for ") + waited_for(kind)) ||
      is_of_ended_capture(mark))
    return;
  learn(device, mark.clock);
}

void synchronize(int device) {
  refuse_in_capture(device, "the host waits for the device");
  const Lock lock;
  Clock all;
  for (const StreamState& stream : timeline().streams) {
    if (stream.device == device) all.merge(stream.clock);
  }
  learn(device, all);
}

bool refuse_question(const Mark& mark) {
  return refuse_in_capture(device_of_stream(mark.stream), "the host asks whether work is over") ||
         is_of_ended_capture(mark);
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

int capture_of(int stream) {
  const Lock lock;
  return state_of(stream).capture;
}

void enter_capture(int stream, int capture, const Clock& clock) {
  const Lock lock;
  StreamState& state = state_of(stream);
  state.capture = capture;
  state.captured = clock;
  state.captured_work = 0;
}

std::vector<int> leave_capture(int capture, int into) {
  const Lock lock;
  const Clock known = state_of(into).captured;
  std::vector<int> result;
  for (int stream = 0; stream < static_cast<int>(timeline().streams.size()); ++stream) {
    StreamState& state = state_of(stream);
    if (state.capture != capture) continue;
    if (known.at(stream) < state.captured_work) result.push_back(stream);
    enter_capture(stream, 0, {});
  }
  return result;
}

}  // namespace fsdp::test::sim
