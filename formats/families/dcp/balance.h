// SPDX-License-Identifier: Apache-2.0
// Decides which rank stores the entries that every rank has.
// Source: torch/distributed/checkpoint/_dedup_save_plans.py of PyTorch 2.3 to 2.15.
#pragma once

#include <cstdint>
#include <queue>
#include <utility>
#include <vector>

namespace fsdp::formats::dcp {

// DCP goes through the entries in rank 0's order.  It gives each entry that all ranks have to the
// rank with the least load so far; of several such ranks, to the lowest.  A tensor counts with all
// its bytes, sharded or not, anything else with 1.  Of sharded tensors, only rank 0's parts count:
// the others come after the last decision.
class Balance {
 public:
  // Requires: world_size >= 1.
  explicit Balance(std::int64_t world_size);
  // Adds a sharded entry.  `bytes`: of the whole tensor.
  void add_cut(std::uint64_t bytes) { first_ += bytes == 0 ? 1 : bytes; }
  // Adds an entry that all ranks have and returns the rank that stores it.  `bytes`: 0 if it is not
  // a tensor.
  std::int64_t place(std::uint64_t bytes);

 private:
  using Load = std::pair<std::uint64_t, std::int64_t>;  // bytes, rank
  std::uint64_t first_ = 0;                             // of rank 0
  std::priority_queue<Load, std::vector<Load>, std::greater<>> others_;
};

}  // namespace fsdp::formats::dcp
