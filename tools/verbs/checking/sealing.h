// SPDX-License-Identifier: Apache-2.0
// The common part of verify and seal: compares the seal of a checkpoint and other lists of
// checksums beside it, or on a hub, with the files.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "formats/bytes/base/json.h"
#include "formats/families/checks/published_check.h"
#include "formats/families/checks/seal_check.h"

namespace fsdp::cli {

// The results of lists of checksums.
struct Sealing {
  formats::SealReport seal;            // its own seal
  formats::SealReport integrity;       // its producer's list, see seal_check.h
  formats::PublishedReport published;  // of a hub, if it was asked
};

// Compares the checkpoint at `path` with its seal, with its producer's list, and with the record of
// shared files (shared_files.h), as far as these exist.  Without a seal and damage, checks whether
// the data are newer than the metadata.
// `ignore_seal`: does not use the seal.  `findings`: the findings so far; more are added.
// Throws: kInterrupted, kIo.
Sealing check_sealing(const std::string& path, const formats::VerifyOptions& options,
                      bool ignore_seal, formats::Findings& findings);

// is_sealed: returns whether there is a list beside the checkpoint.  matches_whole: whether one of
// all lists matched in every byte.
bool is_sealed(const Sealing& sealing);
bool matches_whole(const Sealing& sealing);

// Returns the words about the lists after "sound": ", matches its seal".
std::string sealing_text(const Sealing& sealing);

// null, or {"file", "state", "files", "whole"}.
formats::Json sealing_json(const formats::SealReport& report);

// {"url", "revision", "commit", "whole", "same", ..., "files"}.  Requires: a hub was asked.
formats::Json published_json(const formats::PublishedReport& report);

// Returns lines that say what the hub was compared with, how many files there are of each state,
// and which are the same, of these at most `limit`.  Requires: a hub was asked.
std::vector<std::string> published_lines(const formats::PublishedReport& report, std::size_t limit);

}  // namespace fsdp::cli
