// SPDX-License-Identifier: Apache-2.0
// Pinned memory of the host, and copies between it and a device that the host does not wait for.
//
// The bytes of a copy to the host arrive when the host has waited; before, the memory holds NaN.
// The source of a copy to the device is compared when the host has waited: it must not have changed
// since the copy was queued.  In a capture no pinned memory is allocated.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include "tests/support/sim_device/shadow.h"

namespace fsdp::test::sim {

c10::Allocator* pinned_allocator();
bool is_pinned(const void* address);

// `host`: contiguous, in pinned memory, with the bytes that were copied.
void queue_copy_to_host(const Access& copy, const at::Tensor& host);
void queue_copy_from_host(const Access& copy, const at::Tensor& host);
// Refers to the pinned memory of a contiguous tensor, for later copies.  Does not own the memory.
class PinnedBytes {
 public:
  explicit PinnedBytes(const at::Tensor& host);
  // Returns a tensor of the memory.  If the memory was freed, reports the work and returns an
  // undefined tensor.
  at::Tensor tensor(const Access& now) const;

 private:
  void* memory_;
  std::uint64_t number_;  // of the block
  std::vector<std::int64_t> sizes_;
  at::TensorOptions options_;
};

// Ends the copies that the host knows to be over.
void deliver_host_copies(int device);

}  // namespace fsdp::test::sim
