// SPDX-License-Identifier: Apache-2.0
// The common part of verbs that write a checkpoint: options, checks before writing, the report.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "formats/bytes/base/json.h"
#include "formats/bytes/outputs/journal.h"
#include "formats/bytes/outputs/options.h"
#include "formats/state/content/output.h"
#include "tools/base/common.h"
#include "tools/base/option_set.h"

namespace fsdp::cli {

struct WritingOptions {
  std::string destination;
  bool dry_run = false;
  bool force = false;   // replace an existing destination
  bool sync = true;     // fsync before it counts as done
  bool seal = false;    // write a seal with it
  bool resume = false;  // continue where an earlier run ended
  // Set by `output`: records what of the output is on the disk.
  mutable std::shared_ptr<formats::Journal> journal = formats::no_journal();
  // Returns the options for writing a checkpoint, including the last check of its pickles
  // (check_output_names).
  // Throws: kUsage.
  formats::OutputOptions output(const CommonOptions& common) const;
};

// Declares --dry-run, --force, --no-sync, --seal.  Verbs that write all of their output declare
// --resume, too.
void declare_writing_options(OptionSet& options, WritingOptions& writing);
// Declares OUT, and the options of declare_writing_options.
void declare_writing(OptionSet& options, WritingOptions& writing, const std::string& out_help);

// Refuses a destination that is the source or lies inside it, and a source inside the destination,
// following links; also a URL of an unknown store.  Throws: kSamePath, kUnsupported.
void check_apart(const std::string& source, const std::string& destination);

// Throws: kNoSpace if fewer than `needed` bytes are free at `destination`; kIo.  A URL is not
// checked.
void check_free(const std::string& destination, std::uint64_t needed);

// Refuses content for which PyTorch would have to run code on loading.  Throws: kGlobal with the
// key and a remedy.
void check_globals(const formats::Value& root, const CommonOptions& common);

// A verb's additions to the report.
struct ReportExtras {
  std::vector<std::string> lines;  // before the summary line, for users
  // Returns lines to print after the summary, once the output is in place; empty: there are none.
  std::function<std::string()> last;
  formats::Json::Object members;  // for --json, after "output"
};

// Writes the output, commits it, and reports what was written; a dry run only reports what would be
// written.  `source` is the checkpoint read.
// Returns 0.  Throws: kNoSpace if less is free than the output needs, in a dry run as well.
int write_output(const std::string& verb, const formats::Checkpoint& source,
                 formats::Output& output, const WritingOptions& writing,
                 const CommonOptions& common, const Streams& streams, ReportExtras extras = {});

}  // namespace fsdp::cli
