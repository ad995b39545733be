// SPDX-License-Identifier: Apache-2.0
// Shell completions.
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "tools/command/verb_record.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::joined;

// Quotes text for a shell.  Escapes `special` characters first, for zsh's option specifications.
std::string quoted(const std::string& text, std::string_view special = {}) {
  std::string out = "'";
  for (const char c : text) {
    if (special.find(c) != std::string_view::npos) out += '\\';
    out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return out + "'";
}

std::string names_of(const std::vector<OptionRecord>& options) {
  std::vector<std::string> names;
  for (const OptionRecord& option : options)
    names.insert(names.end(), option.names.begin(), option.names.end());
  return joined(names, " ");
}

// Returns the verbs and their aliases.
std::vector<std::string> verb_names(const std::vector<VerbRecord>& verbs) {
  std::vector<std::string> names;
  for (const VerbRecord& verb : verbs) {
    names.push_back(verb.name);
    if (!verb.alias.empty()) names.push_back(verb.alias);
  }
  return names;
}

std::string pattern_of(const VerbRecord& verb) {
  return verb.alias.empty() ? verb.name : verb.name + "|" + verb.alias;
}

// Returns whether a value of that type is a file or a folder.
bool is_path(const OptionRecord& option) {
  return option.type == "FILE" || option.type == "PATH" || option.type == "OUT" ||
         option.type == "FOLDER";
}

// Appends lines like "--color|--values) words='auto always never' ;;".
void bash_values(std::string& out, const std::vector<OptionRecord>& options,
                 const std::string& indent) {
  for (const OptionRecord& option : options) {
    if (option.type.empty()) continue;
    out += cat(indent, joined(option.names, "|"), ") ");
    if (!option.choices.empty()) {
      out += cat("words='", joined(option.choices, " "), "' value=words ;;\n");
    } else {
      out += is_path(option) ? "value=path ;;\n" : "value=text ;;\n";
    }
  }
}

std::string bash() {
  const std::vector<VerbRecord> verbs = verb_records();
  const std::vector<OptionRecord> common = common_records();
  const std::vector<std::string> names = verb_names(verbs);
  std::string out =
      "# bash completion for fsdp-ckpt, made by fsdp-ckpt --print-completion bash\n"
      "_fsdp_ckpt() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
      "  local verb=${COMP_WORDS[1]-} words='' options='' value=''\n"
      "  COMPREPLY=()\n"
      "  # --name=value comes as three words.\n"
      "  if [[ $current == = ]]; then current=''\n"
      "  elif [[ $before == = && COMP_CWORD -gt 2 ]]; then before=${COMP_WORDS[COMP_CWORD-2]}; fi\n"
      "  if [[ COMP_CWORD -eq 1 ]]; then\n";
  out += cat("    COMPREPLY=($(compgen -W '", joined(names, " "),
             " help --help --version' -- \"$current\"))\n    return\n  fi\n");
  out += "  case $verb in\n";
  for (const VerbRecord& verb : verbs) {
    out += cat("    ", pattern_of(verb), ")\n      options='", names_of(verb.options), "'\n");
    out += "      case $before in\n";
    bash_values(out, verb.options, "        ");
    out += "      esac ;;\n";
  }
  out += cat("    help) COMPREPLY=($(compgen -W '", joined(names, " "),
             "' -- \"$current\")); return ;;\n");
  out += "    *) return ;;\n  esac\n";
  out += cat("  options+=' ", names_of(common), "'\n  case $before in\n");
  bash_values(out, common, "    ");
  out +=
      "  esac\n"
      "  case $value in\n"
      "    words) COMPREPLY=($(compgen -W \"$words\" -- \"$current\")); return ;;\n"
      "    text) return ;;\n"
      "  esac\n"
      "  if [[ -z $value && $current == -* ]]; then\n"
      "    COMPREPLY=($(compgen -W \"$options\" -- \"$current\"))\n"
      "    return\n"
      "  fi\n"
      "  compopt -o filenames 2>/dev/null\n"
      "  local IFS=$'\\n'\n"
      "  COMPREPLY=($(compgen -f -- \"$current\"))\n"
      "}\n"
      "complete -F _fsdp_ckpt fsdp-ckpt\n";
  return out;
}

// Returns one argument of _arguments: '(-k --keys)*'{-k,--keys}'[help]:GLOB:'.
std::string zsh_option(const OptionRecord& option) {
  std::string out;
  if (option.repeated) {
    out += "'*'";
  } else if (option.names.size() > 1) {
    out += quoted("(" + joined(option.names, " ") + ")");
  }
  out += option.names.size() > 1 ? "{" + joined(option.names, ",") + "}" : option.names[0];
  out += "'[" + quoted(option.help, "[]\\").substr(1);
  out.pop_back();
  out += "]";
  if (!option.type.empty()) {
    out += ":" + option.type + ":";
    if (!option.choices.empty()) {
      out += "(" + joined(option.choices, " ") + ")";
    } else if (is_path(option)) {
      out += "_files";
    }
  }
  return out + "'";
}

std::string zsh() {
  const std::vector<VerbRecord> verbs = verb_records();
  std::string out =
      "#compdef fsdp-ckpt\n"
      "# zsh completion for fsdp-ckpt, made by fsdp-ckpt --print-completion zsh\n"
      "_fsdp-ckpt() {\n"
      "  local -a common verbs\n"
      "  common=(\n";
  for (const OptionRecord& option : common_records()) out += cat("    ", zsh_option(option), "\n");
  out += "  )\n  verbs=(\n    'help:Explain a verb'\n";
  for (const VerbRecord& verb : verbs) {
    out += cat("    ", quoted(verb.name + ":" + verb.description), "\n");
    if (!verb.alias.empty()) out += cat("    ", quoted(verb.alias + ":" + verb.description), "\n");
  }
  out +=
      "  )\n"
      "  if (( CURRENT == 2 )); then\n"
      "    _describe -t verbs verb verbs\n"
      "    _arguments '(- *)'{-h,--help}'[Print this help]' '(- *)'{-v,--version}'[Print the "
      "version]'\n"
      "    return\n"
      "  fi\n"
      "  local verb=$words[2]\n"
      "  (( CURRENT-- ))\n"
      "  shift words\n"
      "  case $verb in\n"
      "    help) _describe -t verbs verb verbs ;;\n";
  for (const VerbRecord& verb : verbs) {
    out += cat("    ", pattern_of(verb), ")\n      _arguments -s \"${common[@]}\"");
    for (const OptionRecord& option : verb.options) out += cat(" \\\n        ", zsh_option(option));
    for (const OptionRecord& word : verb.positionals) {
      out += cat(" \\\n        '",
                 word.repeated   ? "*:"
                 : word.required ? ":"
                                 : "::",
                 word.names[0], ":", is_path(word) ? "_files" : "", "'");
    }
    out += " ;;\n";
  }
  out += "  esac\n}\n_fsdp-ckpt \"$@\"\n";
  return out;
}

std::string fish_option(const std::string& condition, const OptionRecord& option) {
  std::string out = cat("complete -c fsdp-ckpt -n ", quoted(condition));
  for (const std::string& name : option.names) {
    const bool is_long = name.starts_with("--");
    out += cat(is_long ? " -l " : " -s ", name.substr(is_long ? 2 : 1));
  }
  if (!option.type.empty()) out += is_path(option) ? " -r -F" : " -x";
  if (!option.choices.empty()) out += " -a " + quoted(joined(option.choices, " "));
  return out + " -d " + quoted(option.help, "\\") + "\n";
}

std::string fish() {
  std::string out =
      "# fish completion for fsdp-ckpt, made by fsdp-ckpt --print-completion fish\n"
      "complete -c fsdp-ckpt -n __fish_use_subcommand -f\n"
      "complete -c fsdp-ckpt -n __fish_use_subcommand -s v -l version -d 'Print the version'\n"
      "complete -c fsdp-ckpt -n __fish_use_subcommand -s h -l help -d 'Print this help'\n"
      "complete -c fsdp-ckpt -n __fish_use_subcommand -a help -d 'Explain a verb'\n";
  const std::vector<VerbRecord> verbs = verb_records();
  out += cat("complete -c fsdp-ckpt -n '__fish_seen_subcommand_from help' -f -a ",
             quoted(joined(verb_names(verbs), " ")), "\n");
  for (const VerbRecord& verb : verbs) {
    const std::string condition =
        "__fish_seen_subcommand_from " + verb.name + (verb.alias.empty() ? "" : " " + verb.alias);
    out += cat("complete -c fsdp-ckpt -n __fish_use_subcommand -a ", verb.name, " -d ",
               quoted(verb.description, "\\"), "\n");
    for (const OptionRecord& option : verb.options) out += fish_option(condition, option);
    for (const OptionRecord& option : common_records()) out += fish_option(condition, option);
  }
  return out;
}

}  // namespace

std::string completion_script(const std::string& shell) {
  if (shell == "bash") return bash();
  if (shell == "zsh") return zsh();
  if (shell == "fish") return fish();
  throw Error(ErrorCode::kUsage,
              "--print-completion needs bash, zsh or fish, not " + formats::quote(shell));
}

}  // namespace fsdp::cli
