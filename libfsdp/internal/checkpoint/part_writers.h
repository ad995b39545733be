// SPDX-License-Identifier: Apache-2.0
// Decides which rank writes which part of a state's sharded tensors.
//
// A rank knows only its own part and copy of each tensor.  Tensors that are cut over the same
// dimensions into equally many parts, and exist in equally many copies, are distributed alike, so
// ranks exchange their parts and copies once for each such grouping.  Parts are counted block by
// block.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "libfsdp/internal/checkpoint/tensor_bridge.h"
#include "libfsdp/process_group.h"

namespace fsdp::internal {

class PartWriters {
 public:
  // Throws: c10::Error if two tensors with equal numbers of parts and copies are not the same part
  // and copy on this rank.
  explicit PartWriters(const std::vector<StateTensor>& tensors);

  // Describes what this rank has, two numbers for each grouping.
  std::string text() const;
  // Takes the texts of all ranks, by rank.
  // Throws: c10::Error, the same on every rank, if no rank or several ranks have a part.
  void learn(const std::vector<std::string>& texts, const ProcessGroup& group);

  // Returns the writers of each part of the `count`-th sharded tensor, as ranks of the group.
  // Copies take turns from tensor to tensor.
  std::shared_ptr<const std::vector<std::int64_t>> of(const ShardedTensor& tensor,
                                                      std::size_t count) const;

 private:
  using Grouping = std::tuple<int, int, std::string>;  // parts, copies, ShardedTensor::over
  using Ranks = std::shared_ptr<std::vector<std::int64_t>>;
  static Grouping grouping_of(const ShardedTensor& tensor);

  std::map<Grouping, std::pair<int, int>> own_;    // part, copy
  std::map<Grouping, std::vector<Ranks>> copies_;  // by copy and part
};

}  // namespace fsdp::internal
