// SPDX-License-Identifier: Apache-2.0
#include "tools/command/verb_record.h"

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
    records.push_back({verb->name(), verb->alias(), verb->description(), verb->examples(),
                       std::move(words.positionals), std::move(words.options)});
  }
  return records;
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
