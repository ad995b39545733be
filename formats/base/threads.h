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

}  // namespace fsdp::formats
