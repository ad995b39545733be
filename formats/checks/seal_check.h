// SPDX-License-Identifier: Apache-2.0
// Whether a checkpoint is still what its seal says, and what a seal of it would say.
//
// The seal of a folder lists every file in it, in folders inside it too; that of a single file
// lists the file.  A checkpoint inside a sealed folder (one of Accelerate's folders, one file of
// several) is held against that folder's seal.  The seals themselves are listed by none.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "formats/files/file_crcs.h"
#include "formats/files/seal.h"
#include "formats/model/finding.h"

namespace fsdp::formats {

enum class SealState {
  kNone,        // there is no seal
  kMatches,     // everything compared is as it was sealed
  kDiffers,     // something is not
  kUnreadable,  // the seal itself is damaged, or of a kind this program does not know
};

// The seal that speaks of a path, if there is one.
struct SealPlace {
  std::filesystem::path folder;  // names in the seal are relative to it
  std::string name;              // of the seal, in the folder
  std::string only;              // what of the seal counts: all, a file, or a folder ("sub/")
  bool single = false;           // the seal of a single file
};
// Looks beside the checkpoint and one folder above.  A data file, `.metadata` or an index stands
// for its folder, as everywhere.
// Throws: kIo, kNotFound.
std::optional<SealPlace> find_seal(const std::filesystem::path& path);

// What a new seal of the path is called, whether there is one or not.
SealPlace seal_place(const std::filesystem::path& path);

struct SealReport {
  SealState state = SealState::kNone;
  std::string seal;         // its path for messages, escaped
  std::uint64_t files = 0;  // compared
  bool whole = false;       // every byte was compared, else sizes and small files alone
  Findings findings;
};

// Compares sizes and checksums of the files that the seal names, and that there are no others.
// `options.fast`: of files above 1 MiB the size alone, but for `.metadata`.  `options.crcs` has
// what is known of the files' checksums; the rest is read, on several threads.
// Every failure is a finding: kSeal, kSealMissing, kSealExtra, kSealMismatch, what reading throws.
// Throws: kInterrupted.
SealReport check_seal(const SealPlace& place, const VerifyOptions& options);

// The files that a seal of the place has to list now.  As in check_seal, what `options.crcs` lacks
// is read; `options.fast`: nothing is, and no checksum is told.
// Throws: kName, kInterrupted, kIo, and what opening the files throws: links that lead out of the
// folder, pipes.
std::vector<SealedFile> files_to_seal(const SealPlace& place, const VerifyOptions& options);

}  // namespace fsdp::formats
