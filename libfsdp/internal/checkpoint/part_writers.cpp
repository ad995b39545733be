// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/checkpoint/part_writers.h"

#include <sstream>

#include <c10/util/Exception.h>

#include "libfsdp/internal/comm/errors.h"

namespace fsdp::internal {
namespace {

constexpr std::int64_t kNobody = -1;

std::string grouping_text(int parts, int copies) {
  return "tensors in " + std::to_string(parts) + " parts and " + std::to_string(copies) + " copies";
}

}  // namespace

PartWriters::PartWriters(const std::vector<StateTensor>& tensors) {
  for (const StateTensor& tensor : tensors) {
    if (tensor.sharded == nullptr) continue;
    const ShardedTensor& sharded = *tensor.sharded;
    const auto [place, fresh] = own_.try_emplace({sharded.layout.world_size, sharded.replica_count},
                                                 sharded.part, sharded.replica);
    const auto [part, replica] = place->second;
    FSDP_CHECK(part == sharded.part && replica == sharded.replica, "'", tensor.key,
               "': this rank has part ", sharded.part, " of copy ", sharded.replica,
               ", but of other ", grouping_text(sharded.layout.world_size, sharded.replica_count),
               " part ", part, " of copy ", replica);
  }
}

std::string PartWriters::text() const {
  std::string result;
  for (const auto& [grouping, place] : own_) {
    for (const int number : {grouping.first, grouping.second, place.first, place.second})
      result += std::to_string(number) + ' ';
  }
  return result;
}

void PartWriters::learn(const std::vector<std::string>& texts, const ProcessGroup& group) {
  for (const auto& [grouping, place] : own_) {
    auto& copies = copies_[grouping];
    for (int c = 0; c < grouping.second; ++c) {
      copies.push_back(std::make_shared<std::vector<std::int64_t>>(
          static_cast<std::size_t>(grouping.first), kNobody));
    }
  }
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    std::istringstream in(texts[rank]);
    int parts = 0;
    int replicas = 0;
    std::size_t part = 0;
    std::size_t replica = 0;
    while (in >> parts >> replicas >> part >> replica) {
      // Groupings are the same on every rank: the ranks have compared them.
      std::int64_t& writer = copies_.at({parts, replicas}).at(replica)->at(part);
      FSDP_CHECK(writer == kNobody, grouping_text(parts, replicas), ": part ", part, " of copy ",
                 replica, " is both rank ", group.global_rank(static_cast<int>(writer)),
                 "'s and rank ", group.global_rank(static_cast<int>(rank)), "'s");
      writer = static_cast<std::int64_t>(rank);
    }
  }
  for (const auto& [grouping, copies] : copies_) {
    for (std::size_t c = 0; c < copies.size(); ++c) {
      for (std::size_t p = 0; p < copies[c]->size(); ++p) {
        FSDP_CHECK((*copies[c])[p] != kNobody, grouping_text(grouping.first, grouping.second),
                   ": no rank has part ", p, " of copy ", c);
      }
    }
  }
}

std::shared_ptr<const std::vector<std::int64_t>> PartWriters::of(const ShardedTensor& tensor,
                                                                 std::size_t count) const {
  const auto& copies = copies_.at({tensor.layout.world_size, tensor.replica_count});
  return copies[count % copies.size()];
}

}  // namespace fsdp::internal
