// SPDX-License-Identifier: Apache-2.0
// The common part of verbs that write a checkpoint: options, the checks before, the report after.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "formats/bytes/base/json.h"
#include "formats/bytes/journal/run_journal.h"
#include "formats/bytes/outputs/options.h"
#include "formats/state/content/output.h"
#include "tools/common.h"
#include "tools/verb.h"

namespace fsdp::cli {

struct WritingOptions {
  std::string destination;
  bool dry_run = false;
  bool force = false;   // replace an existing destination
  bool sync = true;     // fsync before it counts as done
  bool seal = false;    // leave a seal with it
  bool resume = false;  // go on where an earlier run ended
  // Set by `output`: what of the output is on the disk; null: nobody wants to know.
  mutable std::shared_ptr<formats::RunJournal> journal;
  // For a checkpoint: with the last check of its pickles (check_output_names).
  // Throws: kUsage.
  formats::OutputOptions output(const CommonOptions& common) const;
};

// Declares OUT.
void declare_out(OptionSet& options, WritingOptions& writing, const std::string& out_help);
// Declares --dry-run, --force, --no-sync, --seal.
void declare_writing_options(OptionSet& options, WritingOptions& writing);
// Declares --resume, for verbs that write all of their output.
void declare_resume(OptionSet& options, WritingOptions& writing);
// Declares OUT, and the options of declare_writing_options.
void declare_writing(OptionSet& options, WritingOptions& writing, const std::string& out_help);

// Refuses a destination that is the source or lies inside it, and a source inside the destination;
// following links; and a URL of a store that is not known.  Throws: kSamePath, kUnsupported.
void check_apart(const std::string& source, const std::string& destination);

// Free bytes where `destination` will be written.  Throws: kIo.
std::uint64_t free_bytes_at(const std::string& destination);

// Throws: kNoSpace where fewer than `needed` bytes are free there, kIo.  A URL is not checked.
void check_free(const std::string& destination, std::uint64_t needed);

// Refuses what PyTorch would have to run code for to load it.  Throws: kGlobal with the key and
// what to do.
void check_globals(const formats::Value& root, const CommonOptions& common);

// A verb's additions to the report.
struct ReportExtras {
  std::vector<std::string> lines;  // before the summary line, for people
  // Returns lines for behind it, once the output is there; empty: there are none.
  std::function<std::string()> last;
  formats::Json::Object members;  // for --json, after "output"
};

// Ends every writing verb: a dry run reports what would be done; otherwise writes with progress,
// commits, and reports what was written.  `source` is the checkpoint read.
// Returns 0.  Throws: kNoSpace if less is free than the output needs, in a dry run as well.
int write_output(const std::string& verb, const formats::Checkpoint& source,
                 formats::Output& output, const WritingOptions& writing,
                 const CommonOptions& common, const Streams& streams, ReportExtras extras = {});

}  // namespace fsdp::cli
