// SPDX-License-Identifier: Apache-2.0
// The declarations of each verb as data: for help, shell completions and the manual page.
#pragma once

#include <string>
#include <vector>

#include "tools/base/verbs.h"
#include "tools/command/common_options.h"

namespace fsdp::cli {

struct VerbRecord {
  std::string name;
  std::string alias;
  std::string description;
  std::vector<std::string> examples;
  std::vector<OptionRecord> positionals;  // PATH first
  std::vector<OptionRecord> options;      // the verb's own
};

// Returns PATH and the words that the verb declares.
OptionSet words_of(Verb& verb, TypedCommon& typed);
// Returns the records of all verbs, in the order of help.
std::vector<VerbRecord> verb_records();
// Returns the options of the tool itself: --help and --version.
std::vector<OptionRecord> tool_records();
// Returns the options that every verb takes, including --help.
std::vector<OptionRecord> common_records();

}  // namespace fsdp::cli
