// SPDX-License-Identifier: Apache-2.0
// Keys of a checkpoint, for the completions of shells.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace fsdp::cli {

// Returns how the keys that begin with `prefix` go on up to their next dot, which is part of it:
// "model.layers." for "model.la".  In their natural order, each once.  Keys with characters that
// mean something to a shell are left out.
std::vector<std::string> continued_keys(const std::vector<std::string>& keys,
                                        const std::string& prefix);

// Prints those of a checkpoint, one a line; reads only metadata.  `words`: its path, and the prefix
// or nothing.  Throws: what opening the checkpoint throws; kOutOfMemory.
void print_keys(const std::vector<std::string>& words, std::ostream& out);

}  // namespace fsdp::cli
