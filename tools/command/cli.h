// SPDX-License-Identifier: Apache-2.0
// The command line: parses it, runs its verb, and reports errors.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "formats/bytes/base/team.h"

namespace fsdp::cli {

// Runs `fsdp-ckpt args...`.  Results go to `out`, progress, warnings and errors to `err`.  Returns
// the exit status: 0 done, sound, same; 1 the answer is no (damage was found); 2 it could not be
// done; 128 + n if signal n asked to stop.  Throws: bad_alloc if there is no memory even for a
// message.
// `team`: the processes that make the same call, whose leader alone prints; all return the same.
// `threads`: the number for this process if --threads is not given; 0: as many as cores.
int run(const std::vector<std::string>& args, std::ostream& out, std::ostream& err,
        formats::Team& team = formats::this_process(), unsigned threads = 0);

}  // namespace fsdp::cli
