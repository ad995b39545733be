// SPDX-License-Identifier: Apache-2.0
// How the parts of the simulated device count.
#pragma once

#include <cstdint>

#include "tests/support/sim_device/counters.h"
#include "tests/support/sim_device/shadow.h"

namespace fsdp::test::sim {

// Requires: the lock (see lock.h), as long as the result is used.
Counters& counting(int device);
// Changes the memory of a stream and of the device.
void count_memory(int device, int stream, std::int64_t live_bytes, std::int64_t held_bytes);
void count_allocation(int device, int stream);
void count_kernel(const Access& work);
void count_replay(int device);
// Counts a wait of the host for the device, also by its place.
void count_wait(int device, std::int64_t Counters::*kind);

}  // namespace fsdp::test::sim
