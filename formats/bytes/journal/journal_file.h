// SPDX-License-Identifier: Apache-2.0
// The form of a journal: records that one process appends, each of which is whole or not there.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/bytes/files/local_file.h"
#include "formats/bytes/outputs/journal.h"

namespace fsdp::formats {

// A record is a head of four 32-bit numbers (a mark, the number of bytes that follow, their CRC-32,
// the CRC-32 of these three) and its bytes.  If the machine or the process ends while a record is
// written, the end of the file is torn: it holds a part of a record, or zeros in place of it.  A
// torn record was never relied on.  Anything else that is not a record is damage.
struct JournalRecords {
  std::vector<std::string> records;
  std::uint64_t sound_bytes = 0;  // of these records; what follows is torn
};

// Returns the records of an open file.  `shown` is its name for messages.
// Throws: kMismatch naming byte and symptom if it is damaged; kIo.
JournalRecords read_journal(const FileDescriptor& fd, const std::string& shown);

// Appends a record, and returns when it is on the disk.  Requires: fewer than 4 GiB, and a file
// opened with O_APPEND.
// Throws: kIo, kNoSpace.
void append_record(const FileDescriptor& fd, std::string_view bytes, const std::string& shown);

// Returns the bytes of a record of these entries.
std::string record_of(std::span<const JournalEntry> entries);

// Returns the entries of a record.  Throws: kTruncated if it is not one.
std::vector<JournalEntry> entries_of(std::string_view record);

}  // namespace fsdp::formats
