// SPDX-License-Identifier: Apache-2.0
// SHA-256 lists that producers leave in their folders:
// - `integrity.json` of Megatron-Core's dist_checkpointing (verify_integrity=True):
//   {"algorithm": "sha256", "files": {name: digits of base 16}}
// - `_integrity_manifest.json` as proposed for torch_checkpointing (pull request 7 of
//   meta-pytorch/torch_checkpointing): the same with {"version": 1, "granularity": "file"}.
// Both list the regular files of the folder itself, except for the list.
// Source: dist_checkpointing/validation.py of Megatron-LM; torch_checkpointing/integrity.py of the
// pull request.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "formats/families/checks/seal_check.h"

namespace fsdp::formats {

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
