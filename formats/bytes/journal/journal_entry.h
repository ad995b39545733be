// SPDX-License-Identifier: Apache-2.0
// What a record of a journal says.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::formats {

// Bytes of the output that were written together, at most those of an extent.
struct JournalEntry {
  struct Run {
    std::string file;  // OutputFile::member
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::uint32_t crc = 0;  // of these bytes
  };
  std::vector<Run> runs;
  std::uint64_t unchecked_bytes = 0;  // of the source, read for it without a checksum
  std::string reads;                  // of the source: see text_of in partial_reads.h
};

// Returns the bytes of a record of these entries.
std::string record_of(std::span<const JournalEntry> entries);

// Returns the entries of a record.  Throws: kTruncated if it is not one.
std::vector<JournalEntry> entries_of(std::string_view record);

}  // namespace fsdp::formats
