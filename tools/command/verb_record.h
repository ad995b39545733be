// SPDX-License-Identifier: Apache-2.0
// The declarations of each verb as data: for help, shell completions and the manual page.
#pragma once

#include <string>
#include <vector>

#include "tools/base/verbs.h"

namespace fsdp::cli {

struct OptionRecord {
  std::vector<std::string> names;    // "-k", "--keys"; for a positional only its name
  std::string type;                  // the placeholder of its value; empty for a flag
  std::vector<std::string> choices;  // the allowed words, if limited
  std::string help;
  bool repeated = false;
  bool required = false;
};

struct VerbRecord {
  std::string name;
  std::string alias;
  std::string description;
  std::vector<std::string> examples;
  std::vector<OptionRecord> positionals;  // PATH first
  std::vector<OptionRecord> options;      // the verb's own
};

// Returns the records of all verbs, in the order of help.
std::vector<VerbRecord> verb_records();
// Returns the options of the tool itself: --help and --version.
std::vector<OptionRecord> tool_records();
// Returns the options that every verb takes, including --help.
std::vector<OptionRecord> common_records();

}  // namespace fsdp::cli
