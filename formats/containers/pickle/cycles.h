// SPDX-License-Identifier: Apache-2.0
// Finds containers of a pickle stream that are referred to before they are complete: those that
// contain themselves.
// See Note [cycles] in pickle/back_reference.h.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "formats/bytes/base/byte_source.h"
#include "formats/containers/pickle/memo.h"

namespace fsdp::formats {

class PickleCycles {
 public:
  PickleCycles() = default;
  // Follows the stream at `offset` and tracks only the memo slots of values on the stack.
  // `fetched`: from scan_pickle, which has accepted the stream.  At most `max_values` on the stack.
  // Throws: kLimitNodes; kOpcode, kTruncated and similar codes if the file has changed since.
  PickleCycles(const ByteSource& source, std::uint64_t offset, SlotSet fetched,
               std::uint64_t max_values);

  bool empty() const { return rows_.empty(); }
  // Returns the cycle number of the container in the memo slot, if the stream fetches it before one
  // of its changes and changes it after `opcode_offset`; nothing for all others.
  std::optional<std::uint32_t> incomplete(std::uint64_t slot, std::uint64_t opcode_offset) const {
    if (rows_.empty() || !fetched_.contains(slot)) return std::nullopt;
    const Row& row = rows_[object_[fetched_.rank(slot)]];
    if (row.number == 0 || opcode_offset >= row.last_change) return std::nullopt;
    return row.number;
  }

 private:
  class Walk;
  struct Row {
    std::uint64_t last_change = 0;  // offset of the last opcode that changes it after a fetch
    std::uint32_t number = 0;       // 0: it does not contain itself
    bool fetched = false;
  };
  SlotSet fetched_;
  std::vector<std::uint32_t> object_;  // rank of a slot -> rank of the first slot of its value
  std::vector<Row> rows_;              // by the ranks in object_; empty if nothing contains itself
};

}  // namespace fsdp::formats
