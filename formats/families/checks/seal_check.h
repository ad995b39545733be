// SPDX-License-Identifier: Apache-2.0
// Compares a checkpoint with its seal, and collects what a new seal of the checkpoint must list.
//
// The seal of a folder lists every file in it, in folders inside it too; the seal of a single file
// lists that file.  A checkpoint inside a sealed folder (one of Accelerate's folders, one file of
// several) is compared with that folder's seal.  No seal lists the seals themselves.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "formats/bytes/files/file_crcs.h"
#include "formats/bytes/files/seal.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/model/finding.h"

namespace fsdp::formats {

enum class SealState {
  kNone,        // there is no seal
  kMatches,     // everything compared is as it was sealed
  kDiffers,     // something differs
  kUnreadable,  // the seal itself is damaged, or of a version that this program does not know
};

// The seal that covers a path, if there is one.
struct SealPlace {
  std::filesystem::path folder;  // names in the seal are relative to it
  std::string name;              // of the seal, in the folder
  std::string only;  // the part of the seal that counts: all (empty), a file, or a folder ("sub/")
  bool single = false;  // the seal of a single file
};
// Finds the seal of a checkpoint beside it or one folder above.  A data file, `.metadata` or an
// index stands for its folder.
// Throws: kIo, kNotFound.
std::optional<SealPlace> find_seal(const std::filesystem::path& path);

// Returns the place of a new seal of the path, whether or not one exists.
SealPlace seal_place(const std::filesystem::path& path);

struct SealReport {
  SealState state = SealState::kNone;
  std::string seal;         // its path for messages, escaped
  std::uint64_t files = 0;  // compared
  bool whole = false;       // every byte was compared; otherwise only sizes and small files
  Findings findings;
};

// Returns the finding kSeal for a file `name` that cannot be read, and so cannot be relied on.
// `what` it is and its path `shown` are for messages.  Throws `error` again if it says nothing of
// the file.  Requires: called where `error` is handled.
Finding unreliable(const Error& error, std::string_view what, const std::string& shown,
                   const std::string& name);
// Compares sizes and checksums of the files that the seal names, and checks that there are no other
// files.  `options.fast`: compares only the size of files above 1 MiB, except for `.metadata`.
// `options.crcs`: checksums that are already known; the other bytes are read, on several threads.
// Every failure is a finding: kSeal, kSealMissing, kSealExtra, kSealMismatch, and codes of read
// errors.
// Throws: kInterrupted.
SealReport check_seal(const SealPlace& place, const VerifyOptions& options);

// Returns the files that a seal of the place must list now.  Reads the parts that `options.crcs`
// lacks, as check_seal does; with `options.fast`, reads nothing and sets no checksum.
// Throws: kName, kInterrupted, kIo, and the errors of opening the files (links that lead out of the
// folder, pipes).
std::vector<SealedFile> files_to_seal(const SealPlace& place, const VerifyOptions& options);

// Checks whether files that a folder shares with another folder were changed through that folder.

// Compares the folder's files with its record of shared files (shared_files.h), if it has one.  A
// file that is still the linked one but was changed since is kSharedChanged.  A record that cannot
// be read is kSeal.  Copies of the files and missing files are ignored here.
Findings check_shared_files(const std::filesystem::path& folder);

// SHA-256 lists that producers leave in their folders:
// - `integrity.json` of Megatron-Core's dist_checkpointing (verify_integrity=True):
//   {"algorithm": "sha256", "files": {name: digits of base 16}}
// - `_integrity_manifest.json` as proposed for torch_checkpointing (pull request 7 of
//   meta-pytorch/torch_checkpointing): the same with {"version": 1, "granularity": "file"}.
// Both list the regular files of the folder itself, except for the list.
// Source: dist_checkpointing/validation.py of Megatron-LM; torch_checkpointing/integrity.py of the
// pull request.

// Returns the name of the list in the checkpoint folder `path`; nothing if there is none.
std::optional<std::string> find_integrity_file(const std::filesystem::path& path);

// Compares the digests of the files listed; other files are ignored.  `options.fast`: checks only
// that the files are there.
// Every failure is a finding: kSeal (the list itself), kSealMissing, kSealMismatch, and codes of
// read errors.
// Throws: kInterrupted.
SealReport check_integrity_file(const std::filesystem::path& folder, const std::string& name,
                                const VerifyOptions& options);

}  // namespace fsdp::formats
