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

PartWriters::Grouping PartWriters::grouping_of(const ShardedTensor& tensor) {
  return {tensor.layout.world_size * tensor.layout.block_count(), tensor.replica_count,
          tensor.over};
}

PartWriters::PartWriters(const std::vector<StateTensor>& tensors) {
  for (const StateTensor& tensor : tensors) {
    if (tensor.sharded == nullptr) continue;
    const ShardedTensor& sharded = *tensor.sharded;
    const Grouping grouping = grouping_of(sharded);
    const int own = sharded.layout.block() * sharded.layout.world_size + sharded.part;
    const auto [place, fresh] = own_.try_emplace(grouping, own, sharded.replica);
    const auto [part, replica] = place->second;
    FSDP_CHECK(part == own && replica == sharded.replica, "'", tensor.key, "': this rank has part ",
               own, " of copy ", sharded.replica, ", but part ", part, " of copy ", replica,
               " of other ", grouping_text(std::get<0>(grouping), std::get<1>(grouping)));
  }
}

std::string PartWriters::text() const {
  std::string result;
  for (const auto& [grouping, place] : own_) {
    for (const int number : {place.first, place.second}) result += std::to_string(number) + ' ';
  }
  return result;
}

void PartWriters::learn(const std::vector<std::string>& texts, const ProcessGroup& group) {
  for (const auto& [grouping, place] : own_) {
    auto& copies = copies_[grouping];
    for (int c = 0; c < std::get<1>(grouping); ++c) {
      copies.push_back(std::make_shared<std::vector<std::int64_t>>(
          static_cast<std::size_t>(std::get<0>(grouping)), kNobody));
    }
  }
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    std::istringstream in(texts[rank]);
    // Groupings are the same on every rank, and in one order: the ranks have compared them.
    for (auto& [grouping, copies] : copies_) {
      std::size_t part = 0;
      std::size_t replica = 0;
      in >> part >> replica;
      std::int64_t& writer = copies.at(replica)->at(part);
      FSDP_CHECK(writer == kNobody, grouping_text(std::get<0>(grouping), std::get<1>(grouping)),
                 ": part ", part, " of copy ", replica, " is both rank ",
                 group.global_rank(static_cast<int>(writer)), "'s and rank ",
                 group.global_rank(static_cast<int>(rank)), "'s");
      writer = static_cast<std::int64_t>(rank);
    }
  }
  for (const auto& [grouping, copies] : copies_) {
    for (std::size_t c = 0; c < copies.size(); ++c) {
      for (std::size_t p = 0; p < copies[c]->size(); ++p) {
        FSDP_CHECK((*copies[c])[p] != kNobody,
                   grouping_text(std::get<0>(grouping), std::get<1>(grouping)),
                   ": no rank has part ", p, " of copy ", c);
      }
    }
  }
}

std::shared_ptr<const std::vector<std::int64_t>> PartWriters::of(const ShardedTensor& tensor,
                                                                 std::size_t count) const {
  const auto& copies = copies_.at(grouping_of(tensor));
  return copies[count % copies.size()];
}

}  // namespace fsdp::internal
