// SPDX-License-Identifier: Apache-2.0
// Puts the words of a command line into the order in which they are parsed.
#pragma once

#include <string>
#include <vector>

namespace fsdp::cli {

// Returns `args` with the verb first: options before the verb move after it, with their values, and
// `help VERB` becomes `VERB --help`.  Words without a verb, or that ask for the version, stay as
// they are.
std::vector<std::string> verb_first(std::vector<std::string> args);

}  // namespace fsdp::cli
