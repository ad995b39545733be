// SPDX-License-Identifier: Apache-2.0
#include "tools/command/word_order.h"

#include <algorithm>
#include <set>

#include "tools/command/verb_record.h"

namespace fsdp::cli {
namespace {

bool is_option(const std::string& word) {
  return word.size() > 1 && word[0] == '-';
}

// Returns the names of all options that take a value.  Before the verb is known, options of any
// verb may come; an option has a value in all verbs or in none.
std::set<std::string> names_with_value() {
  std::set<std::string> names;
  const auto add = [&](const std::vector<OptionRecord>& options) {
    for (const OptionRecord& option : options) {
      if (option.type.empty()) continue;
      names.insert(option.names.begin(), option.names.end());
      names.insert(option.old_names.begin(), option.old_names.end());
    }
  };
  add(common_records());
  for (const VerbRecord& verb : verb_records()) add(verb.options);
  return names;
}

// Returns whether the word after `option` is its value: not after --name=value or -kGLOB.
bool takes_next_word(const std::string& option, const std::set<std::string>& with_value) {
  if (option.starts_with("--")) return with_value.contains(option);
  for (std::size_t at = 1; at < option.size(); ++at) {
    if (with_value.contains(std::string("-") + option[at])) return at + 1 == option.size();
  }
  return false;
}

std::vector<std::string> options_moved(std::vector<std::string> args) {
  std::set<std::string> with_value;
  std::size_t at = 0;
  while (at < args.size() && is_option(args[at])) {
    if (args[at] == "--" || args[at] == "--version" || args[at] == "-v" || args[at] == "-V")
      return args;
    if (with_value.empty()) with_value = names_with_value();
    at += takes_next_word(args[at], with_value) ? 2 : 1;
  }
  if (at >= args.size()) return args;
  const auto verb = args.begin() + static_cast<std::ptrdiff_t>(at);
  std::rotate(args.begin(), verb, verb + 1);
  return args;
}

// Makes -w4 of -w=4, where the option takes a value.
void drop_equals(std::vector<std::string>& args) {
  std::set<std::string> with_value;
  for (std::string& arg : args) {
    if (arg == "--") return;
    if (arg.size() < 4 || arg[0] != '-' || arg[1] == '-' || arg[2] != '=') continue;
    if (with_value.empty()) with_value = names_with_value();
    if (with_value.contains(arg.substr(0, 2))) arg.erase(2, 1);
  }
}

}  // namespace

std::vector<std::string> verb_first(std::vector<std::string> args) {
  if (args.empty()) return args;
  drop_equals(args);
  if (is_option(args[0])) args = options_moved(std::move(args));
  if (args[0] != "help") return args;
  const auto verb = std::find_if_not(args.begin() + 1, args.end(), is_option);
  if (verb == args.end()) return {"--help"};
  return {*verb, "--help"};
}

}  // namespace fsdp::cli
