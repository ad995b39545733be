// SPDX-License-Identifier: Apache-2.0
// Lists of SHA-256 that producers leave in their folders:
// - `integrity.json` of Megatron-Core's dist_checkpointing (verify_integrity=True):
//   {"algorithm": "sha256", "files": {name: digits of base 16}}
// - `_integrity_manifest.json` as proposed for torch_checkpointing (pull request 7 of
//   meta-pytorch/torch_checkpointing): the same with {"version": 1, "granularity": "file"}.
// Both list the regular files of the folder itself, but for the list.
// Source: dist_checkpointing/validation.py of Megatron-LM; torch_checkpointing/integrity.py of the
// pull request.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "formats/checks/seal_check.h"

namespace fsdp::formats {

// The name of the list that speaks of the checkpoint at `path`, a folder; nothing where there is
// none.
std::optional<std::string> find_integrity_file(const std::filesystem::path& path);

// Compares the digests of the files listed; files that are not are none of its business.
// `options.fast`: only whether the files are there.
// Every failure is a finding: kSeal (the list itself), kSealMissing, kSealMismatch, what reading
// throws.
// Throws: kInterrupted.
SealReport check_integrity_file(const std::filesystem::path& folder, const std::string& name,
                                const VerifyOptions& options);

}  // namespace fsdp::formats
