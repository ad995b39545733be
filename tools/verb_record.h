// SPDX-License-Identifier: Apache-2.0
// What each verb declares, as data: for shell completions and the manual page.
#pragma once

#include <string>
#include <vector>

#include "tools/verbs.h"

namespace fsdp::cli {

struct OptionRecord {
  std::vector<std::string> names;    // "-k", "--keys"; a positional's name alone
  std::string type;                  // what stands for its value; empty for a flag
  std::vector<std::string> choices;  // the words allowed, where only some are
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
  std::vector<OptionRecord> options;      // its own
};

// Of all verbs, in the order of help.
std::vector<VerbRecord> verb_records();
// The options every verb takes, --help among them.
std::vector<OptionRecord> common_records();

}  // namespace fsdp::cli
