// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of the test, each with a device (see test_device.h): Gloo over loopback, and a
// store in memory.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "libfsdp/process_group.h"

namespace fsdp::test {

using RankBody = std::function<void(const std::shared_ptr<ProcessGroup>& group)>;

// Runs `body` once for each rank, concurrently, and returns when all have ended.
// Throws: std::runtime_error with every failing rank's message, by rank; ranks that failed by
// themselves come before those that lost others.  A rank's failure is announced to the others.
void spawn_ranks(int world_size, const RankBody& body,
                 std::chrono::milliseconds timeout = std::chrono::seconds(20));
// The same with other options; the world size is among them.
void spawn_ranks(ProcessGroupOptions options, const RankBody& body);

}  // namespace fsdp::test
