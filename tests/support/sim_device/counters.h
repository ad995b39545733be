// SPDX-License-Identifier: Apache-2.0
// Counts of what a simulated device has done.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace fsdp::test::sim {

// Memory of one stream, or of all.
struct MemoryCounters {
  std::int64_t allocations = 0;
  std::int64_t live_bytes = 0;
  // Live bytes, and freed ones that cannot be reused before another stream has come far enough.
  std::int64_t held_bytes = 0;
  std::int64_t peak_live_bytes = 0;
  std::int64_t peak_held_bytes = 0;
};

struct Counters {
  std::int64_t kernels = 0;           // operators, copies and collectives
  std::int64_t captured_kernels = 0;  // the same in captures, which only record them
  std::int64_t replays = 0;           // of graphs
  std::int64_t fresh_blocks = 0;      // allocations that found no free block: cudaMalloc
  std::int64_t events_recorded = 0;
  std::int64_t events_alive = 0;
  std::int64_t event_waits = 0;      // of the host
  std::int64_t stream_waits = 0;     // of the host, for a stream or the whole device
  std::int64_t copy_waits = 0;       // of the host: copies from the device, or blocking ones to it
  std::int64_t item_waits = 0;       // of the host: item()
  std::int64_t unwaited_copies = 0;  // between the device and pinned memory
  std::int64_t recorded_on_streams = 0;  // calls of record_stream
  MemoryCounters memory;
  std::map<std::string, MemoryCounters> memory_of;  // by the name of a stream
  std::map<std::string, std::int64_t> wait_places;  // chains of calls that made the host wait

  std::int64_t host_waits() const noexcept {
    return event_waits + stream_waits + copy_waits + item_waits;
  }
};

// Returns a copy of the counts.  Thread-safe.
Counters counters(int device);
// Begins to count anew; peaks begin at what is there.  Thread-safe.
void reset_counters(int device);

}  // namespace fsdp::test::sim
