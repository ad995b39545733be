// SPDX-License-Identifier: Apache-2.0
// A capture in progress, as the parts of the simulated device use it.
//
// Operators run in a capture too, because only a run gives the sizes of results.  A recording
// therefore saves memory before it is written, and puts it back at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "tests/support/sim_device/shadow.h"

namespace fsdp::test::sim {

// Bytes of device memory that recorded work reads or writes.
struct MemoryUse {
  const char* memory = nullptr;
  std::size_t bytes = 0;
  std::uint64_t loan = 0;  // of their block (see device_allocator.h)
  bool is_own = false;     // of the graph's own memory
  bool write = false;
};

struct RecordedWork {
  Access access;  // of the capture
  std::vector<MemoryUse> uses;
  std::function<void(const Access& now)> run;  // does the work; empty: there is nothing to do
};

// Requires, of all members: the lock (see lock.h).
class Recording {
 public:
  Recording(int capture, int of_device, int first_stream)
      : number(capture), device(of_device), stream(first_stream) {}

  const int number;  // of the capture, from 1
  const int device;
  const int stream;  // that the capture began on

  // Returns the work's place in `work`.
  int add(const Access& access);
  // Returns the accesses to a block in the capture, which have no order with those outside of it.
  Shadow& shadow_of(const char* block) { return shadows_[block]; }
  // Saves the content that a block had at the beginning, unless it was saved before.
  void save(const char* block, std::size_t bytes, std::uint64_t loan);
  // Saves the state of a generator, from which work draws random numbers.
  void save(const at::Generator& generator);
  // Puts contents and generators back, except of memory that was freed.
  void restore();

  std::vector<RecordedWork> work;

 private:
  struct Saved {
    std::uint64_t loan = 0;
    std::vector<char> bytes;
  };

  std::map<const char*, Shadow> shadows_;
  std::map<const char*, Saved> saved_;
  std::vector<std::pair<at::Generator, at::Tensor>> generators_;  // with their states
};

// Returns the capture in progress; null if there is none.
// Requires: the lock, as long as the result is used.
Recording* recording_of(int device);
// Sets the device's capture; null: ends it.
void set_recording(int device, Recording* recording);

// Returns whether work is recorded: record() must then say how it is done again.
inline bool is_recorded(const Access& work) noexcept {
  return work.node >= 0;
}
// Keeps how to do recorded work again.  Thread-safe.
void record(const Access& work, std::function<void(const Access& now)> run);
// Notes that recorded work on the device draws from the generator.  Reports a generator that is not
// the device's own.  Thread-safe.
void record_draws(int device, const at::Generator& generator);
// If the device captures, reports "in a capture: <what>" and returns true; else returns false.
// Thread-safe.
bool refuse_in_capture(int device, const std::string& what);

}  // namespace fsdp::test::sim
