// SPDX-License-Identifier: Apache-2.0
// Helper threads for work that would also get done without them.
#pragma once

#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

namespace fsdp::formats {

// Starts threads that run body(1) to body(count), or fewer if the system gives no more (a limit on
// processes, or memory for their stacks).  The others then do their work, so a body takes its work
// from a shared queue.
// Throws: std::bad_alloc.
std::vector<std::jthread> start_helpers(std::size_t count,
                                        const std::function<void(std::size_t)>& body);

// Calls body(i) for every i below `count`, in about this order, by up to `threads` threads, of
// which this one is the first.  After a body has thrown, no other one begins. Throws: what the body
// of the lowest i threw.
void run_each(std::size_t count, std::size_t threads, const std::function<void(std::size_t)>& body);

}  // namespace fsdp::formats
