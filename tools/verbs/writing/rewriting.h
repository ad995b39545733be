// SPDX-License-Identifier: Apache-2.0
// Writes a checkpoint again in its own format with edited content: the common part of rename and
// rekey.
#pragma once

#include <string>

#include "formats/state/checkpoint/checkpoint.h"
#include "tools/base/common.h"
#include "tools/base/option_set.h"
#include "tools/verbs/writing/writing.h"

namespace fsdp::cli {

struct RewritingOptions {
  WritingOptions writing;
  bool link = true;  // share data files of folders with the source if possible
};

// Declares OUT, --copy and the options of every writing verb.
void declare_rewriting(OptionSet& options, RewritingOptions& rewriting);

// Throws: kUnsupported for checkpoints that cannot be written in their own format, and names an
// alternative.
void check_rewritable(const formats::Checkpoint& source);

// Writes a DCP folder that shares the source's data files; other formats go through the copy
// engine.  `changed`: what the content refers to, if it is not the source; not for a DCP folder.
// Returns 0.  Throws: Error; nothing is written then.
int write_rewritten(const std::string& verb, const formats::StoredCheckpoint& source,
                    formats::Value content, const RewritingOptions& rewriting,
                    const CommonOptions& common, const Streams& streams, ReportExtras extras,
                    const formats::Checkpoint* changed = nullptr);

// Reads a text file named on the command line: a map, a list of names.  Throws: kLimitSize; what
// opening and reading throw.
std::string read_text_file(const std::string& path);

}  // namespace fsdp::cli
