// SPDX-License-Identifier: Apache-2.0
// The memory of a simulated device, lent as CUDA's caching allocator lends it: a freed block is
// reused at once by the stream that it was allocated on, because work on one stream is ordered.  If
// record_stream() named other streams, it is reused only when they have come far enough.
//
// In a capture, streams that are part of it get memory of the graph's own (see capture.h).  Each
// time that a block is lent has a number, the loan.
//
// Fresh and freed memory is NaN.
#pragma once

#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include "tests/support/sim_device/recording.h"
#include "tests/support/sim_device/shadow.h"

namespace fsdp::test::sim {

c10::Allocator* device_allocator();

// Keeps the memory, once freed, from reuse until the work that is then on the stream is over.
// Ignores memory of other allocators.
void record_on_stream(const c10::DataPtr& memory, const c10::Stream& stream);

// Notes that work reads or writes memory of the device, and reports it if no event orders it after
// earlier work, or if the memory is freed.
void note_access(const Access& access, const void* memory, std::size_t bytes, bool write);
// The same for the elements of a tensor; ignores tensors of the host.
void note_access(const Access& access, const at::Tensor& tensor, bool write);

// Notes an access of recorded work that is done again.  Returns false if the memory was freed
// since, and is not the graph's own.
bool note_access_again(const Access& access, const MemoryUse& use);
// Returns whether the block at the address `block` still has this loan.
bool is_lent(const char* block, std::uint64_t loan);

// Fills all memory of a graph with NaN, as memory without content.
void poison_memory_of_graph(int graph);
// Lends a graph's own memory to anybody from now on, memory in use once it is freed.
void give_back_memory_of_graph(int graph);

// Frees blocks that waited for streams, where the host now knows that these came far enough.
void release_waiting_blocks(int device);

}  // namespace fsdp::test::sim
