// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of the test: Gloo over loopback, and a store in memory.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "libfsdp/process_group.h"

namespace fsdp::test {

using RankBody = std::function<void(const std::shared_ptr<ProcessGroup>& group)>;

// Runs `body` once for each rank, at once, and returns when all have ended.
// Throws: std::runtime_error that holds what every failing rank said, by rank, and first those that
// failed by themselves rather than by losing others.  A rank's failure is made known to the others.
void spawn_ranks(int world_size, const RankBody& body,
                 std::chrono::milliseconds timeout = std::chrono::seconds(20));

}  // namespace fsdp::test
