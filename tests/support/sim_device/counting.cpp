// SPDX-License-Identifier: Apache-2.0
#include "tests/support/sim_device/counting.h"

#include <algorithm>
#include <array>

#include "tests/support/sim_device/arena.h"
#include "tests/support/sim_device/call_chain.h"
#include "tests/support/sim_device/device_allocator.h"
#include "tests/support/sim_device/lock.h"
#include "tests/support/sim_device/timeline.h"

namespace fsdp::test::sim {
namespace {

struct Counted {
  Counters counters;
  std::map<int, std::int64_t> wait_chains;
};

Counted& counted(int device) {
  static auto* const all = new std::array<Counted, kMostDevices>;
  return all->at(static_cast<std::size_t>(device));
}

void add(MemoryCounters& memory, std::int64_t live_bytes, std::int64_t held_bytes) {
  memory.live_bytes += live_bytes;
  memory.held_bytes += held_bytes;
  memory.peak_live_bytes = std::max(memory.peak_live_bytes, memory.live_bytes);
  memory.peak_held_bytes = std::max(memory.peak_held_bytes, memory.held_bytes);
}

MemoryCounters begun_anew(const MemoryCounters& memory) {
  MemoryCounters result;
  result.live_bytes = result.peak_live_bytes = memory.live_bytes;
  result.held_bytes = result.peak_held_bytes = memory.held_bytes;
  return result;
}

}  // namespace

Counters& counting(int device) {
  return counted(device).counters;
}

void count_memory(int device, int stream, std::int64_t live_bytes, std::int64_t held_bytes) {
  Counters& counters = counting(device);
  add(counters.memory, live_bytes, held_bytes);
  add(counters.memory_of[stream_name(stream)], live_bytes, held_bytes);
}

void count_allocation(int device, int stream) {
  ++counting(device).memory.allocations;
  ++counting(device).memory_of[stream_name(stream)].allocations;
}

void count_kernel(const Access& work) {
  const Lock lock;
  Counters& counters = counting(device_of_stream(work.stream));
  ++(work.capture == 0 ? counters.kernels : counters.captured_kernels);
}

void count_replay(int device) {
  const Lock lock;
  ++counting(device).replays;
}

void count_wait(int device, std::int64_t Counters::*kind) {
  const int chain = call_chain();
  const Lock lock;
  ++(counting(device).*kind);
  ++counted(device).wait_chains[chain];
}

Counters counters(int device) {
  const Lock lock;
  release_waiting_blocks(device);
  Counters result = counting(device);
  for (const auto& [chain, count] : counted(device).wait_chains)
    result.wait_places[chain_text(chain)] += count;
  return result;
}

void reset_counters(int device) {
  const Lock lock;
  release_waiting_blocks(device);
  const Counters before = counting(device);
  Counters after;
  after.events_alive = before.events_alive;
  after.memory = begun_anew(before.memory);
  for (const auto& [name, memory] : before.memory_of) after.memory_of[name] = begun_anew(memory);
  counted(device) = {after, {}};
}

}  // namespace fsdp::test::sim
