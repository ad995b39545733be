// SPDX-License-Identifier: Apache-2.0
#include "formats/families/trainers/zero_partitions.h"

#include <algorithm>

namespace fsdp::formats::deepspeed {
namespace {

// Returns a + b, but at most 2^63 - 1.
std::int64_t capped_sum(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

}  // namespace

std::int64_t piece_numel(std::int64_t numel, std::int64_t ranks) {
  return numel / ranks + (numel % ranks == 0 ? 0 : 1);
}

std::int64_t piece_begin(std::int64_t numel, std::int64_t piece, std::int64_t rank) {
  return piece == 0 || rank > numel / piece ? numel : rank * piece;
}

std::vector<FlatRun> runs_by_group(const Parameter& parameter, const FlatGroupsByRank& ranks) {
  const std::size_t g = parameter.group;
  std::int64_t partition = 0;
  for (const auto& [rank, groups] : ranks) {
    if (g < groups.tensors.size()) partition = std::max(partition, groups.tensors[g].shape[0]);
  }
  std::vector<FlatRun> runs;
  if (partition == 0) return runs;
  const std::int64_t parameter_end = capped_sum(parameter.begin, parameter.numel);
  for (const auto& [rank, groups] : ranks) {
    if (g >= groups.tensors.size() || rank > INT64_MAX / partition) continue;
    const TensorValue& tensor = groups.tensors[g];
    const std::int64_t from = rank * partition;
    const std::int64_t begin = std::max(parameter.begin, from);
    const std::int64_t end = std::min(parameter_end, capped_sum(from, tensor.shape[0]));
    if (begin >= end) continue;
    runs.push_back(
        {begin - parameter.begin, end - parameter.begin, groups.file, &tensor, begin - from});
  }
  return runs;
}

std::vector<FlatRun> runs_by_parameter(const Parameter& parameter, const FlatGroupsByRank& ranks,
                                       std::int64_t rank_count) {
  const std::int64_t piece = piece_numel(parameter.numel, rank_count);
  std::vector<FlatRun> runs;
  for (const auto& [rank, groups] : ranks) {
    const std::int64_t first = piece_begin(parameter.numel, piece, rank);
    const std::int64_t count = std::min(piece, parameter.numel - first);
    const std::int64_t piece_end = capped_sum(parameter.begin, count);
    std::int64_t group_begin = 0;
    for (const TensorValue& tensor : groups.tensors) {
      if (group_begin >= piece_end) break;
      const std::int64_t group_end = capped_sum(group_begin, tensor.shape[0]);
      const std::int64_t begin = std::max(parameter.begin, group_begin);
      const std::int64_t end = std::min(piece_end, group_end);
      if (begin < end) {
        runs.push_back({first + (begin - parameter.begin), first + (end - parameter.begin),
                        groups.file, &tensor, begin - group_begin});
      }
      group_begin = group_end;
    }
  }
  return runs;
}

}  // namespace fsdp::formats::deepspeed
