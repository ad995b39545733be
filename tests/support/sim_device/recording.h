// SPDX-License-Identifier: Apache-2.0
// A capture while it goes on: what the parts of the simulated device tell it, and how they ask.
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
  // Accesses to a block in the capture: they are in no order with those outside of it.
  Shadow& shadow_of(const char* block) { return shadows_[block]; }
  // Keeps the content of a block, if it was not kept before, as it was at the beginning.
  void save(const char* block, std::size_t bytes, std::uint64_t loan);
  // Work draws random numbers.
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

// Returns the capture that goes on; null if there is none.
// Requires: the lock, as long as the result is used.
Recording* recording_of(int device);
// Makes it the device's; null ends it.
void set_recording(int device, Recording* recording);

// Whether work is recorded, and has to say how it is done again.
inline bool is_recorded(const Access& work) noexcept {
  return work.node >= 0;
}
// Keeps how to do recorded work again.  Thread-safe.
void record(const Access& work, std::function<void(const Access& now)> run);
// Recorded work on the device draws from the generator.  Reports one that is not the device's own.
// Thread-safe.
void record_draws(int device, const at::Generator& generator);
// Reports what must not be done in a capture: "in a capture: <what>".  Returns false if none goes
// on on the device.  Thread-safe.
bool refuse_in_capture(int device, const std::string& what);

}  // namespace fsdp::test::sim
