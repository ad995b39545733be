// SPDX-License-Identifier: Apache-2.0
// The common part of verify and seal: compares the seal of a checkpoint and other lists of
// checksums beside it with the files.
#pragma once

#include <string>

#include "formats/bytes/base/json.h"
#include "formats/families/checks/seal_check.h"

namespace fsdp::cli {

// The results of lists of checksums beside the checkpoint.
struct Sealing {
  formats::SealReport seal;       // its own seal
  formats::SealReport integrity;  // its producer's list, see integrity_file.h
};

// Compares the checkpoint at `path` with its seal, with its producer's list, and with the record of
// shared files (shared_files.h), as far as these exist.  Without a seal and damage, checks whether
// the data are newer than the metadata.
// `ignore_seal`: does not use the seal.  `findings`: the findings so far; more are added.
// Throws: kInterrupted, kIo.
Sealing check_sealing(const std::string& path, const formats::VerifyOptions& options,
                      bool ignore_seal, formats::Findings& findings);

// is_sealed: returns whether there is any such list.  matches_whole: whether one of them matched in
// every byte.
bool is_sealed(const Sealing& sealing);
bool matches_whole(const Sealing& sealing);

// Returns the words about the lists after "sound": ", matches its seal".
std::string sealing_text(const Sealing& sealing);

// null, or {"file", "state", "files", "whole"}.
formats::Json sealing_json(const formats::SealReport& report);

}  // namespace fsdp::cli
