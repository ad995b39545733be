// SPDX-License-Identifier: Apache-2.0
// The memory of a simulated device, lent as CUDA's caching allocator lends it: a freed block is
// reused by the stream that it was allocated on, at once, because work on one stream is ordered;
// and only when other streams came far enough, if record_stream() named them.
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

// The memory is not reused before the work that is on the stream when it is freed is over.  Ignores
// memory that the allocator did not give.
void record_on_stream(const c10::DataPtr& memory, const c10::Stream& stream);

// Notes that work reads or writes memory of the device, and reports it if no event orders it after
// earlier work, or if the memory is freed.
void note_access(const Access& access, const void* memory, std::size_t bytes, bool write);
// The same for the elements of a tensor; ignores those of the host.
void note_access(const Access& access, const at::Tensor& tensor, bool write);

// Notes an access of recorded work that is done again.  Returns false if the memory was freed
// since, and is not the graph's own.
bool note_access_again(const Access& access, const MemoryUse& use);
// Returns whether a block is still lent as it was.  `block`: its first address.
bool is_lent(const char* block, std::uint64_t loan);

// All memory of a graph has no content.
void poison_memory_of_graph(int graph);
// Memory that was a graph's own is lent to whoever asks, or once it is freed.
void give_back_memory_of_graph(int graph);

// Makes blocks free that waited for streams which the host now knows to be far enough.
void release_waiting_blocks(int device);

}  // namespace fsdp::test::sim
