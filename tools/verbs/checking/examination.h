// SPDX-License-Identifier: Apache-2.0
// Looks for all damage of a checkpoint.  Verify, latest and prune share this code, so that they
// agree on which checkpoints are sound.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "formats/state/checkpoint/checkpoint.h"
#include "tools/base/common.h"
#include "tools/base/option_set.h"
#include "tools/verbs/checking/sealing.h"
#include "tools/verbs/models/quantization_check.h"

namespace fsdp::cli {

struct ExaminationOptions {
  CommonOptions common;            // `path` is the checkpoint
  bool fast = false;               // only metadata and sizes
  bool strict = false;             // warnings and unknown findings fail too
  bool require_checksums = false;  // data without a checksum is a finding
  bool require_seal = false;       // a checkpoint without a seal is a finding
  std::string against = {};        // folder of a hub that the files are compared with; empty: none
};

// Declares --fast, --strict, --require-checksums, --require-seal.
void declare_examination(OptionSet& options, ExaminationOptions& examination);

struct Examination {
  std::string path;    // escaped
  std::string format;  // empty if it could not be opened
  // If several checkpoints lie in the folder, their paths below it; empty for the folder's own
  // files.  Findings name files below the folder.
  std::vector<std::string> parts;
  formats::VerifyReport report;
  Sealing sealing;
  std::size_t files = 0;
  // What was compared of quantized weights; its findings are in the report.  Of several parts, the
  // last one that has some.
  std::optional<QuantizationCheck> quantization = {};
};

// Reads the whole checkpoint, or with `fast` its metadata, and every other checkpoint in its
// folder. `verb`: for the progress line.
// With `against`, content of an unknown format is a finding: the files are compared all the same.
// Throws: errors that say nothing about the checkpoint itself: kNotFound, kUnknownFormat,
// kUnsupported, kInterrupted, kIo, ...
Examination examine(const ExaminationOptions& options, const std::string& verb,
                    const Streams& streams);

// Examines, like `examine`, the checkpoints in the folder to which none of `files` belongs.
// `files` are paths below the folder.
formats::Findings examine_beside(const ExaminationOptions& options,
                                 const std::vector<std::string>& files, const std::string& verb,
                                 const Streams& streams);

// Returns the findings about a part.
formats::Findings findings_of_part(const Examination& examination, const std::string& part);

// Adds the findings that the options require, and returns whether the checkpoint is sound: nothing
// is damaged or unsafe, and with `strict` nothing is unknown.
// Requires: throw_if_unread passed.
bool judge(const ExaminationOptions& options, Examination& examination);

// Returns the number of findings of that severity.
std::size_t count(const formats::Findings& findings, formats::Finding::Severity severity);

}  // namespace fsdp::cli
