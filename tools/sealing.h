// SPDX-License-Identifier: Apache-2.0
// What verify and seal share: the seal of a checkpoint and other lists of checksums beside it, held
// against the files.
#pragma once

#include <optional>
#include <string>

#include "formats/base/json.h"
#include "formats/checks/seal_check.h"
#include "tools/common.h"

namespace fsdp::cli {

// What lists of checksums beside the checkpoint said.
struct Sealing {
  formats::SealReport seal;       // its own seal
  formats::SealReport integrity;  // what its producer left: see integrity_file.h
};

// Holds the checkpoint at `path` against its seal and its producer's list, where it has them, and
// against the record of files it shares (shared_files.h).  A checkpoint without a seal, and without
// damage, is asked whether its data are newer than their metadata.
// `ignore_seal`: as if there was none.  `findings`: those so far, to which more are added.
// Throws: kInterrupted, kIo.
Sealing check_sealing(const std::string& path, const formats::VerifyOptions& options,
                      bool ignore_seal, formats::Findings& findings);

// Whether there is any such list, and whether one of them matched in every byte.
bool is_sealed(const Sealing& sealing);
bool matches_whole(const Sealing& sealing);

// ", matches its seal": what of the lists is worth a word behind "sound".
std::string sealing_text(const Sealing& sealing);

// null, or {"file", "state", "files", "whole"}.
formats::Json sealing_json(const formats::SealReport& report);

}  // namespace fsdp::cli
