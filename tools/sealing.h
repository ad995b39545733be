// SPDX-License-Identifier: Apache-2.0
// The common part of verify and seal: compares the seal of a checkpoint and other lists of
// checksums beside it with the files.
#pragma once

#include <optional>
#include <string>

#include "formats/bytes/base/json.h"
#include "formats/families/checks/seal_check.h"
#include "tools/common.h"

namespace fsdp::cli {

// The results of lists of checksums beside the checkpoint.
struct Sealing {
  formats::SealReport seal;       // its own seal
  formats::SealReport integrity;  // its producer's list, see integrity_file.h
};

// Compares the checkpoint at `path` with its seal and its producer's list, if it has them, and with
// the record of files that it shares (shared_files.h).  If it has neither a seal nor damage, checks
// whether its data are newer than their metadata.
// `ignore_seal`: as if there were none.  `findings`: those so far, to which more are added.
// Throws: kInterrupted, kIo.
Sealing check_sealing(const std::string& path, const formats::VerifyOptions& options,
                      bool ignore_seal, formats::Findings& findings);

// Returns whether there is any such list, and whether one of them matched in every byte.
bool is_sealed(const Sealing& sealing);
bool matches_whole(const Sealing& sealing);

// Returns the words about the lists after "sound": ", matches its seal".
std::string sealing_text(const Sealing& sealing);

// null, or {"file", "state", "files", "whole"}.
formats::Json sealing_json(const formats::SealReport& report);

}  // namespace fsdp::cli
