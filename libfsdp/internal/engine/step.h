// SPDX-License-Identifier: Apache-2.0
// What one forward and its backward hold: see Note [one step] in engine.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "libfsdp/internal/engine/reduction.h"

namespace fsdp::internal {

struct Step {
  std::atomic<bool> in_forward = false;
  std::atomic<std::thread::id> thread;  // of the forward
  bool grad_mode = true;                // of the forward
  bool failed = false;                  // other ranks were told of a failure
  std::atomic<int> kernels = 0;         // operators running: of the forward or backward
  std::atomic<int> strangers = 0;       // operators running in other threads
  // The unit the last operator used, unsharded; further operators on it need nothing.
  std::atomic<Unit*> current = nullptr;
  std::atomic<int> current_task = -1;    // the graph task it was used in
  std::vector<int> graph_tasks;          // of this backward, reentrant ones last
  std::vector<Reduction::Part> pending;  // to be reduced together
  std::int64_t pending_bytes = 0;
  std::deque<Reduction> in_flight;
  std::vector<Arriving> arriving;

  bool in_backward() const noexcept { return !graph_tasks.empty(); }
  // Drops what a backward that threw left behind.
  void drop_gradients() noexcept {
    pending.clear();
    pending_bytes = 0;
    in_flight.clear();
    arriving.clear();
  }
};

}  // namespace fsdp::internal
