// SPDX-License-Identifier: Apache-2.0
// Checksums of storages of which every one of several processes reads a part: what each read is
// put together, so that no byte is read a second time for its checksum.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "formats/base/crc_ledger.h"
#include "formats/base/error.h"

namespace fsdp::formats {

// A storage that carries a CRC-32, and what one process read of it.
struct PartialRead {
  std::string file;               // name for messages
  std::string key;                // of a tensor in it
  std::uint64_t file_offset = 0;  // of the storage's first byte
  std::uint64_t storage_bytes = 0;
  std::uint32_t crc = 0;                    // as the checkpoint has it
  ErrorCode mismatch = ErrorCode::kZipCrc;  // what data that do not match it are an error of
  CrcLedger ledger;                         // of what was read
};

// Throws: `mismatch` naming file, key, byte and both checksums, unless `computed` is the storage's.
void check_crc(const PartialRead& storage, std::uint32_t computed);

// For another process that reads the same checkpoint, by the same path.
std::string text_of(std::span<const PartialRead> reads);
// Throws: kJson where `text` is not what text_of gives.
std::vector<PartialRead> partial_reads_from(const std::string& text);

// Compares every storage that the readers together read whole.  Returns the bytes of the others.
// Throws: as check_crc; the same on every process that is given the same.
std::uint64_t check_together(std::span<const std::vector<PartialRead>> readers);

}  // namespace fsdp::formats
