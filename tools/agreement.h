// SPDX-License-Identifier: Apache-2.0
// Compares what the members of a team see before they work together.
#pragma once

#include <string>
#include <vector>

#include "formats/bytes/base/team.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "tools/common.h"

namespace fsdp::cli {

// Throws kMismatch naming a member, unless all are the same program with the same arguments.
void agree_on_start(formats::Team& team, const std::vector<std::string>& args);

// Throws kMismatch naming a member, unless all see the same checkpoint at `path`: files with their
// sizes and times, tensors and where they lie.  Enters the same into `common.identity`.
// Lifetime: without a team, the checkpoint lives until an output is written.
void agree_on_source(const CommonOptions& common, const std::string& path,
                     const formats::Checkpoint& checkpoint);

// Enters a word of the command line, `what`, and size and time of the file that it names, if it
// names one.
void identify_word(formats::PlanIdentity& identity, const std::string& what,
                   const std::string& word);

}  // namespace fsdp::cli
