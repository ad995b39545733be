// SPDX-License-Identifier: Apache-2.0
// The first pass over a pickle stream: its opcodes, lengths, frames and memo slots, without any
// values.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "formats/base/byte_source.h"

namespace fsdp::formats {

// A growing set of memo slots.
class SlotSet {
 public:
  bool contains(std::uint64_t slot) const {
    return slot / 64 < words_.size() && (words_[slot / 64] >> (slot % 64) & 1U) != 0;
  }
  // Returns false where the slot is in it already.
  bool insert(std::uint64_t slot);
  // Numbers the slots in ascending order, for `rank`.
  void make_ranks();
  // How many slots of the set are below `slot`.  Requires: make_ranks, and no insert since.
  std::uint32_t rank(std::uint64_t slot) const {
    const std::uint64_t below = words_[slot / 64] & ((std::uint64_t{1} << (slot % 64)) - 1);
    return ranks_[slot / 64] + static_cast<std::uint32_t>(std::popcount(below));
  }
  std::uint32_t count() const { return count_; }

 private:
  std::vector<std::uint64_t> words_;
  std::vector<std::uint32_t> ranks_;  // of the first slot of each word
  std::uint32_t count_ = 0;
};

struct PickleScan {
  std::uint64_t end_offset = 0;  // behind STOP
  SlotSet fetched;               // memo slots that some BINGET or LONG_BINGET reads
};

// Reads the pickle at `offset` to its STOP.  `whole`: STOP is the last byte of the source.
// Throws: kEmpty, kTruncated, kTrailing, kOpcode, kProto, kFrame, kMemo, kIntRange, kGlobal (a line
// without end).
PickleScan scan_pickle(const ByteSource& source, std::uint64_t offset, bool whole);

}  // namespace fsdp::formats
