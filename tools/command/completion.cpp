// SPDX-License-Identifier: Apache-2.0
// Shell completions.
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/map/builtin.h"
#include "tools/base/dtype_word.h"
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

// Returns whether a value of that type is a map: a built-in one or a file of rules.
bool is_map(const OptionRecord& option) {
  return option.type == "MAP" || option.type == "RULES";
}

// Returns whether a value of that type is, or may be, a file or a folder.
bool is_path(const OptionRecord& option) {
  return option.type == "FILE" || option.type == "PATH" || option.type == "OUT" ||
         option.type == "FOLDER" || option.type == "OTHER" || is_map(option);
}

// Returns whether a value of that type is a key, or a glob of them, which begins like one.
bool is_key(const OptionRecord& option) {
  return option.type == "GLOB" || option.type == "KEY";
}

// Returns the words for a value, with blanks between them: all that are allowed, or those that are
// known.
std::string words_for(const OptionRecord& option) {
  if (!option.choices.empty()) return joined(option.choices, " ");
  std::vector<std::string> words;
  if (option.type == "DTYPE") words = floating_words();
  if (is_map(option)) {
    for (const auto& map : formats::map::builtin_maps()) words.emplace_back(map.name);
  }
  return joined(words, " ");
}

// Appends lines like "--color|--values) words='auto always never' ;;".
void bash_values(std::string& out, const std::vector<OptionRecord>& options,
                 const std::string& indent) {
  for (const OptionRecord& option : options) {
    if (option.type.empty()) continue;
    const std::string words = words_for(option);
    out += cat(indent, joined(option.names, "|"), ") words='", words, "' value=",
               is_key(option)    ? "key"
               : is_path(option) ? "path"
               : words.empty()   ? "text"
                                 : "words",
               " ;;\n");
  }
}

// Returns what completes words without a dash, beside files: "words='...'" for maps, "keys=1".
std::string bash_arguments(const VerbRecord& verb) {
  std::string out;
  for (const OptionRecord& word : verb.positionals) {
    if (is_map(word)) out += cat(" words='", words_for(word), "'");
    if (is_key(word)) out += " keys=1";
  }
  return out;
}

std::string bash() {
  const std::vector<VerbRecord> verbs = verb_records();
  const std::vector<OptionRecord> common = common_records();
  const std::vector<std::string> names = verb_names(verbs);
  std::string out =
      "# bash completion for fsdp-ckpt, made by fsdp-ckpt --print-completion bash\n"
      "_fsdp_ckpt() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
      "  local verb=${COMP_WORDS[1]-} words='' options='' value='' keys='' word\n"
      "  COMPREPLY=()\n"
      "  # --name=value comes as three words.\n"
      "  if [[ $current == = ]]; then current=''\n"
      "  elif [[ $before == = && COMP_CWORD -gt 2 ]]; then before=${COMP_WORDS[COMP_CWORD-2]}; fi\n"
      "  if [[ COMP_CWORD -eq 1 ]]; then\n";
  out += cat("    COMPREPLY=($(compgen -W '", joined(names, " "),
             " help --help --version' -- \"$current\"))\n    return\n  fi\n");
  out += "  case $verb in\n";
  for (const VerbRecord& verb : verbs) {
    out += cat("    ", pattern_of(verb), ")\n      options='", names_of(verb.options), "'",
               bash_arguments(verb), "\n");
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
      "  if [[ $value == key || ( -z $value && -n $keys ) ]]; then\n"
      "    # Of the first path in the line.  What the program prints is never evaluated.\n"
      "    for word in \"${COMP_WORDS[@]:2}\"; do\n"
      "      [[ -e $word && $word != \"$current\" ]] || continue\n"
      "      mapfile -t COMPREPLY < <(\"${COMP_WORDS[0]}\" --print-keys \"$word\" "
      "\"${current#[\\\"\\']}\" 2>/dev/null)\n"
      "      [[ ${COMPREPLY[0]-} == *. ]] && compopt -o nospace 2>/dev/null\n"
      "      break\n"
      "    done\n"
      "    [[ $value == key || -n ${COMPREPLY[0]-} ]] && return\n"
      "  fi\n"
      "  compopt -o filenames 2>/dev/null\n"
      "  local IFS=$'\\n'\n"
      "  COMPREPLY=($(compgen -f -- \"$current\"))\n"
      "  [[ -z $words ]] || COMPREPLY+=($(IFS=$' \\n'; compgen -W \"$words\" -- \"$current\"))\n"
      "}\n"
      "complete -F _fsdp_ckpt fsdp-ckpt\n";
  return out;
}

// Returns what zsh completes a value with.
std::string zsh_action(const OptionRecord& option) {
  if (is_key(option)) return "_fsdp-ckpt_keys";
  const std::string words = words_for(option);
  if (is_map(option))
    return " _alternative \"maps\\:map\\:(" + words + ")\" \"files\\:file\\:_files\"";
  if (!words.empty()) return "(" + words + ")";
  return is_path(option) ? "_files" : "";
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
    out += ":" + option.type + ":" + zsh_action(option);
  }
  return out + "'";
}

std::string zsh() {
  const std::vector<VerbRecord> verbs = verb_records();
  std::string out =
      "#compdef fsdp-ckpt\n"
      "# zsh completion for fsdp-ckpt, made by fsdp-ckpt --print-completion zsh\n"
      "# Of the first path in the line.\n"
      "_fsdp-ckpt_keys() {\n"
      "  local word\n"
      "  local -a found\n"
      "  for word in $words[2,-1]; do\n"
      "    [[ -e ${(Q)word} ]] || continue\n"
      "    found=(${(f)\"$(fsdp-ckpt --print-keys ${(Q)word} ${(Q)PREFIX} 2>/dev/null)\"})\n"
      "    compadd -S '' -- ${(M)found:#*.}\n"
      "    compadd -- ${found:#*.}\n"
      "    return\n"
      "  done\n"
      "}\n"
      "_fsdp-ckpt() {\n"
      "  local -a common verbs\n"
      "  common=(\n";
  for (const OptionRecord& option : common_records()) out += cat("    ", zsh_option(option), "\n");
  out += "  )\n  verbs=(\n    'help:Explain a verb'\n";
  for (const VerbRecord& verb : verbs) {
    out += cat("    ", quoted(verb.name + ":" + verb.brief), "\n");
    if (!verb.alias.empty()) out += cat("    ", quoted(verb.alias + ":" + verb.brief), "\n");
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
                 word.names[0], ":", zsh_action(word), "'");
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
  const std::string words = is_key(option) ? "(__fsdp_ckpt_keys)" : words_for(option);
  if (!words.empty()) out += " -a " + quoted(words);
  return out + " -d " + quoted(option.help, "\\") + "\n";
}

std::string fish() {
  std::string out =
      "# fish completion for fsdp-ckpt, made by fsdp-ckpt --print-completion fish\n"
      "# Of the first path in the line.\n"
      "function __fsdp_ckpt_keys\n"
      "  for word in (commandline -opc)[3..-1]\n"
      "    test -e $word; or continue\n"
      "    fsdp-ckpt --print-keys $word (commandline -ct | string trim -c '\"\\'') 2>/dev/null\n"
      "    return\n"
      "  end\n"
      "end\n"
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
    out += cat("complete -c fsdp-ckpt -n __fish_use_subcommand -a '", verb.name, " ", verb.alias,
               "' -d ", quoted(verb.brief, "\\"), "\n");
    for (const OptionRecord& option : verb.options) out += fish_option(condition, option);
    for (const OptionRecord& option : common_records()) out += fish_option(condition, option);
    for (const OptionRecord& word : verb.positionals) {
      const std::string words = is_key(word) ? "(__fsdp_ckpt_keys)" : words_for(word);
      if (!words.empty())
        out += cat("complete -c fsdp-ckpt -n ", quoted(condition), " -a ", quoted(words), "\n");
    }
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
