// SPDX-License-Identifier: Apache-2.0
// Helper threads for work that would also get done without them.
#pragma once

#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

namespace fsdp::formats {

// Starts threads that run body(1) to body(count), or fewer if the system gives no more (a limit on
// processes, or memory for their stacks).  The other threads then do the work of the missing ones,
// so a body must take its work from a shared queue.
// Throws: std::bad_alloc.
std::vector<std::jthread> start_helpers(std::size_t count,
                                        const std::function<void(std::size_t)>& body);

// Calls body(i) for every i below `count`, in about this order, on up to `threads` threads, this
// one included.  After a body has thrown, no other one begins.  Throws: the exception of the lowest
// i that threw.
void run_each(std::size_t count, std::size_t threads, const std::function<void(std::size_t)>& body);

}  // namespace fsdp::formats
