// SPDX-License-Identifier: Apache-2.0
// The first pass over a pickle stream: its opcodes, lengths, frames and memo slots, without any
// values.
#pragma once

#include <cstdint>

#include "formats/bytes/base/byte_source.h"
#include "formats/containers/pickle/memo.h"

namespace fsdp::formats {

struct PickleScan {
  std::uint64_t end_offset = 0;  // after STOP
  SlotSet fetched;               // memo slots that some BINGET or LONG_BINGET reads
};

// Reads the pickle at `offset` to its STOP.  `whole`: STOP is the last byte of the source.
// Throws: kEmpty, kTruncated, kTrailing, kOpcode, kProto, kFrame, kMemo, kIntRange, kGlobal (a line
// without end).
PickleScan scan_pickle(const ByteSource& source, std::uint64_t offset, bool whole);

}  // namespace fsdp::formats
