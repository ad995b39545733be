// SPDX-License-Identifier: Apache-2.0
// The seal of a checkpoint: size and CRC-32 of each of its files, in a small file beside them.
// docs/formats/seal.md describes the format.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/bytes/files/file.h"

namespace fsdp::formats {

// The name of a folder's seal, inside it.  DCP and trainers look for files by other names.
inline constexpr std::string_view kSealName = "fsdp_seal.json";
// Returns the name of the seal of the single file NAME, beside it: NAME.fsdp_seal.json.
std::string sidecar_name(std::string_view file_name);
// Returns whether a file of this name is a seal, of a folder or of a file beside it.
bool is_seal_name(std::string_view name);

struct SealedFile {
  std::string name;  // relative to the folder; of a single file its own
  std::uint64_t bytes = 0;
  std::uint32_t crc = 0;  // CRC-32 of all these bytes
};

// Returns the text of a seal of these files, given in any order.
// Throws: kName if a name is not UTF-8, which a seal cannot hold.
std::string seal_text(std::vector<SealedFile> files);

// Returns the length of that text, which does not depend on the checksums.
std::uint64_t seal_bytes(std::vector<SealedFile> files);

// Reads a seal: files sorted by name, no name twice.
// Throws: kSeal saying what is wrong with it; kLimitSize.
std::vector<SealedFile> read_seal(const File& file);

}  // namespace fsdp::formats
