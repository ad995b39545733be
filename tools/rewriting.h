// SPDX-License-Identifier: Apache-2.0
// A checkpoint written again in its own form with edited content: what rename and rekey share.
#pragma once

#include <string>

#include "formats/checkpoint/checkpoint.h"
#include "tools/common.h"
#include "tools/verb.h"
#include "tools/writing.h"

namespace fsdp::cli {

struct RewritingOptions {
  WritingOptions writing;
  bool link = true;  // data files of folders are shared with the source where they can be
};

// OUT, --copy and what every writing verb has.
void declare_rewriting(OptionSet& options, RewritingOptions& rewriting);

// Throws: kUnsupported for checkpoints that cannot be written in their own form, naming what to do.
void check_rewritable(const formats::Checkpoint& source);

// A DCP folder becomes one that shares the source's data files; everything else is copied through
// the copy engine.  Returns 0.  Throws: Error; nothing is written then.
int write_rewritten(const std::string& verb, const formats::Checkpoint& source,
                    formats::Value content, const RewritingOptions& rewriting,
                    const CommonOptions& common, const Streams& streams, ReportExtras extras);

// A text file that the command line names: a map, a list of names.  Throws: kLimitSize; what
// opening and reading throw.
std::string read_text_file(const std::string& path);

}  // namespace fsdp::cli
