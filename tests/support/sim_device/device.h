// SPDX-License-Identifier: Apache-2.0
// A simulated accelerator: c10's PrivateUse1 device, named "sim", in the memory of the host.  It
// has streams, events, a caching allocator and pinned memory, and a checker.
//
// Operators run when they are called, on the CPU, so that results are those of the CPU and the same
// in every run.  The checker reports every access to memory that no event orders after an earlier
// one (timeline.h), use of freed memory (device_allocator.h), and pinned memory that changes under
// a copy (host_copies.h).  Host code that reads a device address dies (arena.h).  Work can be
// captured and replayed (capture.h).
//
// Not simulated: time, overlap, NCCL's own behaviour, sparse tensors.
#pragma once

#include <c10/core/Device.h>

namespace fsdp::test::sim {

// Makes the devices, and the backend "sim" of process groups (backend.h).  Call once, before any
// tensor of a device is made.
void install(int devices);
bool is_installed() noexcept;

inline c10::Device device_at(int index) {
  return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index)};
}

}  // namespace fsdp::test::sim
