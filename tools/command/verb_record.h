// SPDX-License-Identifier: Apache-2.0
// The declarations of each verb as data, and what is made from them: help, shell completions and
// the manual page.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tools/base/verbs.h"
#include "tools/command/common_options.h"

namespace fsdp::cli {

struct VerbRecord {
  std::string name;
  std::string alias;
  std::string group;
  std::string brief;
  std::string description;
  std::vector<std::string> examples;
  bool more_ends_in_output = false;
  std::vector<OptionRecord> positionals;  // PATH first
  std::vector<OptionRecord> options;      // the verb's own
};

// Returns PATH and the words that the verb declares.
OptionSet words_of(Verb& verb, TypedCommon& typed);
// Returns the records of all verbs, in the order of help, or of one.  Requires: it exists.
std::vector<VerbRecord> verb_records();
VerbRecord verb_record(const std::string& name);
// Returns what has to be typed: "fsdp-ckpt reshard PATH OUT --world-size N".
std::string command_of(const VerbRecord& verb);
// Returns the options of the tool itself: --help and --version.
std::vector<OptionRecord> tool_records();
// Returns the options that every verb takes, including --help.
std::vector<OptionRecord> common_records();

// Return the help of the tool and of a verb, in lines of at most `columns` characters.
// Requires: a verb of that name exists.
std::string tool_help(std::size_t columns);
std::string verb_help(const std::string& name, std::size_t columns);
// Returns the completion script for "bash", "zsh" or "fish".  Throws: kUsage for any other shell.
std::string completion_script(const std::string& shell);
// Returns fsdp-ckpt(1) in the man macros of roff, without a date, so that each build has the same
// page.
std::string man_page();

}  // namespace fsdp::cli
