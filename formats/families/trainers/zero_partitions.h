// SPDX-License-Identifier: Apache-2.0
// The rules by which DeepSpeed's ZeRO cuts parameters into flat partitions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "formats/state/content/tensor_value.h"

namespace fsdp::formats::deepspeed {

struct Parameter {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t numel = 0;
  std::size_t group = 0;
  std::int64_t begin = 0;  // stages 1, 2: in the group's flat tensor; 3: in each rank's groups
};

// The flat tensors of one kind of one rank: one per group.
struct FlatGroups {
  std::uint32_t file = 0;
  std::vector<TensorValue> tensors;  // of one dimension
};
using FlatGroupsByRank = std::map<std::int64_t, FlatGroups>;

// Elements begin to end of a flattened parameter, found in `tensor` from its element `from` on.
struct FlatRun {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::uint32_t file = 0;
  const TensorValue* tensor = nullptr;
  std::int64_t from = 0;
};

// Returns the number of elements in each rank's part of a parameter in stage 3: all parts have the
// same length, and the last one is padded.
std::int64_t piece_numel(std::int64_t numel, std::int64_t ranks);
// Returns the beginning of the part of `rank`; `numel` if the rank has none.
std::int64_t piece_begin(std::int64_t numel, std::int64_t piece, std::int64_t rank);

// Returns the runs of a parameter in stages 1 and 2.  Each group is one flat tensor, cut into equal
// partitions; padding at its end may be missing.  Missing ranks leave a gap.  Lifetime: the runs
// point into `ranks`.
std::vector<FlatRun> runs_by_group(const Parameter& parameter, const FlatGroupsByRank& ranks);

// Returns the runs of a parameter in stage 3.  Each parameter is cut separately; its pieces lie at
// the same place in every rank's groups, which are joined.
std::vector<FlatRun> runs_by_parameter(const Parameter& parameter, const FlatGroupsByRank& ranks,
                                       std::int64_t rank_count);

}  // namespace fsdp::formats::deepspeed
