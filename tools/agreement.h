// SPDX-License-Identifier: Apache-2.0
// Compares what the members of a team see before they work together.
#pragma once

#include <string>
#include <vector>

#include "formats/base/team.h"
#include "formats/checkpoint/checkpoint.h"

namespace fsdp::cli {

// Throws kMismatch naming a member, unless all are the same program with the same arguments.
void agree_on_start(formats::Team& team, const std::vector<std::string>& args);

// Throws kMismatch naming a member, unless all see the same checkpoint at `path`: files with their
// sizes and times, tensors and where they lie.  Does nothing if `team` is null.
void agree_on_source(formats::Team* team, const std::string& path,
                     const formats::Checkpoint& checkpoint);

}  // namespace fsdp::cli
