// SPDX-License-Identifier: Apache-2.0
// Words that users type for things that have another name here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/command/verb_record.h"

namespace fsdp::cli {

// Returns what to type instead of words that do not begin with a verb: "; to show what is inside:
// fsdp-ckpt inspect PATH".  Requires: there is a word.
std::string verb_remedy(const std::vector<std::string>& args);

// Returns what to type instead of an option that `verb` does not have, "--nproc" or "--nproc=8".
std::string option_remedy(const VerbRecord& verb, const std::string& option);

// Return whether other programs have a verb or an option of that name.
bool is_foreign_verb(std::string_view word);
bool is_foreign_option(std::string_view name);

// Returns a sentence about a PATH that does not exist: one that a shell would have expanded, a URL
// that lacks something, a name below a folder or file, or a repository on a hub.
std::string meant_path(const std::string& path);

}  // namespace fsdp::cli
