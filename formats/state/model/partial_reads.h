// SPDX-License-Identifier: Apache-2.0
// Checksums of storages that several processes read in parts: the parts are combined, so that no
// byte is read a second time for its checksum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "formats/bytes/base/crc32.h"
#include "formats/bytes/base/error.h"

namespace fsdp::formats {

// A storage that carries a CRC-32, and the parts that one process read of it.
struct PartialRead {
  std::string file;               // name for messages
  std::string key;                // a tensor in it
  std::uint64_t file_offset = 0;  // of the storage's first byte
  std::uint64_t storage_bytes = 0;
  std::uint32_t crc = 0;                    // as stored in the checkpoint
  ErrorCode mismatch = ErrorCode::kZipCrc;  // code of the error if data do not match it
  CrcLedger ledger;                         // of the parts read
};

// Throws: `mismatch` naming file, key, byte and both checksums, unless `computed` equals the stored
// one.
void check_crc(const PartialRead& storage, std::uint32_t computed);

// Encodes the reads for another process that reads the same checkpoint by the same path.
std::string text_of(std::span<const PartialRead> reads);
// Throws: kJson if `text` is not a result of text_of.
std::vector<PartialRead> partial_reads_from(const std::string& text);

// A storage, and the parts that several processes read of it.
struct JoinedRead {
  PartialRead read;
  std::size_t first_reader = 0;  // the number of the first process that has it
};
// Returns each storage once, in the order of files and offsets.
std::vector<JoinedRead> joined(std::span<const std::vector<PartialRead>> readers);

// Compares every storage that the readers together read whole.  Returns the number of bytes of the
// others.
// Throws: like check_crc; the same on every process that has the same input.
std::uint64_t check_together(std::span<const std::vector<PartialRead>> readers);

}  // namespace fsdp::formats
