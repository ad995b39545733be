// SPDX-License-Identifier: Apache-2.0
// Which rank writes which part of a state's sharded tensors.
//
// A rank knows its own part and copy of each tensor, not the others'.  All tensors that are cut
// into as many parts and exist in as many copies are held alike, so that ranks tell one another
// once for each such pair of numbers.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "libfsdp/internal/checkpoint/tensor_bridge.h"
#include "libfsdp/process_group.h"

namespace fsdp {

class PartWriters {
 public:
  // Throws: c10::Error where two tensors with equal numbers of parts and copies are not the same
  // part and copy on this rank.
  explicit PartWriters(const std::vector<StateTensor>& tensors);

  // What this rank has, one line a grouping.
  std::string text() const;
  // What every rank has, by rank.
  // Throws: c10::Error, the same on every rank, where a part is nobody's or several ranks'.
  void learn(const std::vector<std::string>& texts, const ProcessGroup& group);

  // The writers of each part of the `count`-th sharded tensor, ranks of the group: copies take
  // turns.
  std::shared_ptr<const std::vector<std::int64_t>> of(const ShardedTensor& tensor,
                                                      std::size_t count) const;

 private:
  using Grouping = std::pair<int, int>;  // parts, copies
  using Ranks = std::shared_ptr<std::vector<std::int64_t>>;
  std::map<Grouping, std::pair<int, int>> own_;    // part, copy
  std::map<Grouping, std::vector<Ranks>> copies_;  // by copy and part
};

}  // namespace fsdp
