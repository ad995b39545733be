// SPDX-License-Identifier: Apache-2.0
// How DeepSpeed's ZeRO cuts parameters into flat partitions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "formats/content/tensor_value.h"

namespace fsdp::formats::deepspeed {

struct Parameter {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t numel = 0;
  std::size_t group = 0;
  std::int64_t begin = 0;  // stages 1, 2: in the group's flat tensor; 3: in each rank's groups
};

// The flat tensors of one kind of one rank: one a group.
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

// Elements of each rank's part of a parameter in stage 3: all ranks' are as long, the last one's
// padded.
std::int64_t piece_numel(std::int64_t numel, std::int64_t ranks);
// Where the part of `rank` begins; numel where there is none.
std::int64_t piece_begin(std::int64_t numel, std::int64_t piece, std::int64_t rank);

// Stages 1 and 2: each group is one flat tensor, cut into equal partitions; padding at its end may
// be left out.  Ranks that are not there leave a gap.  Lifetime: the runs point into `ranks`.
std::vector<FlatRun> runs_by_group(const Parameter& parameter, const FlatGroupsByRank& ranks);

// Stage 3: each parameter is cut on its own; its pieces lie at the same place of every rank's
// groups, taken as one run.
std::vector<FlatRun> runs_by_parameter(const Parameter& parameter, const FlatGroupsByRank& ranks,
                                       std::int64_t rank_count);

}  // namespace fsdp::formats::deepspeed
