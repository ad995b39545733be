// SPDX-License-Identifier: Apache-2.0
// Addresses of device memory.
//
// A device has two equal ranges of addresses.  Tensors have addresses of the first one, which
// nobody can read or write: host code that looks at data_ptr() dies, as with a GPU.  The memory
// itself lies in the second one, at a fixed distance, where operators find it.
#pragma once

#include <cstddef>

namespace fsdp::test::sim {

inline constexpr int kMostDevices = 8;
// The bytes of memory without content: NaN in every floating-point dtype.
inline constexpr int kPoison = 0xFF;

// Reserves the addresses of `devices` devices, and makes a fault in them end the process with
// "simulated device: the host has read or written device memory without an operator" and the
// calls that led there.
void open_arenas(int devices);
int device_count() noexcept;

// Returns the first of `bytes` new addresses.
// Throws: c10::Error if the device has none left.
char* take_addresses(int device, std::size_t bytes);
// Returns the device of an address; -1 for memory of the host.
int device_of(const void* address) noexcept;
// Returns the place of a device address in the memory of the host.
char* on_host(const void* address) noexcept;

}  // namespace fsdp::test::sim
