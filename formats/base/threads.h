// SPDX-License-Identifier: Apache-2.0
// Threads that help with work which is done without them as well.
#pragma once

#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

namespace fsdp::formats {

// Starts threads that run body(1) to body(count), and fewer where the system gives no more: a limit
// on processes, or memory for their stacks.  What they would have done is for the others, so a body
// takes its work from what all share.
// Throws: std::bad_alloc.
std::vector<std::jthread> start_helpers(std::size_t count,
                                        const std::function<void(std::size_t)>& body);

}  // namespace fsdp::formats
