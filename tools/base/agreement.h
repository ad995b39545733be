// SPDX-License-Identifier: Apache-2.0
// Checks that the members of a team have the same task and see the same checkpoint.
#pragma once

#include <string>
#include <vector>

#include "formats/bytes/base/team.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "tools/base/common.h"

namespace fsdp::cli {

// Throws kMismatch naming a member, unless all are the same program with the same arguments.
void agree_on_start(formats::Team& team, const std::vector<std::string>& args);

// Throws kMismatch naming a member, unless all see the same checkpoint at `path`: files with their
// sizes and times, tensors and where they lie.  Enters these facts into `common.identity`.
// Lifetime: without other processes, the checkpoint lives until an output is written.
void agree_on_source(const CommonOptions& common, const std::string& path,
                     const formats::Checkpoint& checkpoint);

// Enters `word`, a word of the command line, under the name `what`.  If the word names a file, also
// enters the file's size and time.
void identify_word(formats::PlanIdentity& identity, const std::string& what,
                   const std::string& word);

}  // namespace fsdp::cli
