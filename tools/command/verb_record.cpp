// SPDX-License-Identifier: Apache-2.0
#include "tools/command/verb_record.h"

#include <algorithm>

namespace fsdp::cli {
OptionSet words_of(Verb& verb, TypedCommon& typed) {
  OptionSet words;
  verb.declare_first(words);
  const std::string path = verb.path_help();
  if (!path.empty()) words.positional("PATH", typed.common.path, path);
  verb.declare(words);
  return words;
}

std::vector<VerbRecord> verb_records() {
  std::vector<VerbRecord> records;
  for (const auto& verb : all_verbs()) {
    TypedCommon typed;
    OptionSet words = words_of(*verb, typed);
    records.push_back({verb->name(), verb->alias(), verb->group(), verb->brief(),
                       verb->description(), verb->examples(), verb->more_ends_in_output(),
                       std::move(words.positionals), std::move(words.options)});
  }
  return records;
}

VerbRecord verb_record(const std::string& name) {
  const std::vector<VerbRecord> records = verb_records();
  return *std::find_if(records.begin(), records.end(),
                       [&](const VerbRecord& record) { return record.name == name; });
}

std::string command_of(const VerbRecord& verb) {
  std::string command = "fsdp-ckpt " + verb.name;
  for (const OptionRecord& word : verb.positionals) {
    if (word.required && !word.repeated) command += " " + word.names.front();
  }
  if (verb.more_ends_in_output) command += " MORE... OUT";
  for (const OptionRecord& option : verb.options) {
    if (option.required) command += " " + option.names.back() + " " + option.type;
  }
  return command;
}

std::vector<OptionRecord> tool_records() {
  return {{.names = {"-h", "--help"}, .help = "Print this help"},
          {.names = {"-v", "--version"}, .help = "Print the version"}};
}

std::vector<OptionRecord> common_records() {
  TypedCommon typed;
  OptionSet words;
  declare_common(words, typed);
  words.options.insert(words.options.begin(), tool_records().front());
  return std::move(words.options);
}

}  // namespace fsdp::cli
