// SPDX-License-Identifier: Apache-2.0
// The help of the tool and of its verbs.
#include <algorithm>
#include <utility>
#include <vector>

#include "tools/command/verb_record.h"
#include "tools/text/terminal_text.h"

namespace fsdp::cli {
namespace {

constexpr const char* kDescription =
    "Inspects, verifies, compares and rewrites PyTorch checkpoints: torch.distributed.checkpoint "
    "folders, torch.save files, safetensors, HDF5 and what trainers make of them. Needs no Python, "
    "and runs nothing of what it reads.";
constexpr const char* kFooter =
    "Exit status: 0 done, sound, same; 1 the answer is no; 2 it could not be done. "
    "'fsdp-ckpt help VERB' explains a verb.";

// What most people come for, and the command.
constexpr std::pair<const char*, const char*> kTasks[] = {
    {"One file for torch.load", "fsdp-ckpt consolidate step-400 full.pt"},
    {"A folder for from_pretrained", "fsdp-ckpt export checkpoint-400 hf"},
    {"Go on after a crash", "fsdp-ckpt latest run"},
};

// Blanks before a name, and the column where its explanation begins: of verbs, tasks, and options,
// for which it is smaller on terminals with fewer columns than kWide.
constexpr std::size_t kHelpIndent = 2;
constexpr std::size_t kVerbColumn = 16;
constexpr std::size_t kColumn = 32;
constexpr std::size_t kNarrowColumn = 24;
constexpr std::size_t kWide = 80;

// Returns "-k, --keys GLOB"; several long names stand on separate lines.
std::string option_text(const OptionRecord& option) {
  std::string text = "    ";
  for (const std::string& name : option.names) {
    if (name.starts_with("--")) {
      text += name;
    } else {
      text = name + ", ";
    }
  }
  return option.type.empty() ? text : text + " " + option.type;
}

class HelpText {
 public:
  explicit HelpText(std::size_t columns)
      : columns_(columns), column_(columns >= kWide ? kColumn : kNarrowColumn) {}

  std::string paragraph(const std::string& text) const { return wrapped(text, columns_, 0) + "\n"; }

  std::string usage(const std::string& verb, const std::vector<OptionRecord>& positionals) const {
    std::string text = "Usage: fsdp-ckpt " + verb + " [OPTIONS]";
    for (const OptionRecord& positional : positionals) {
      const std::string word = positional.names.front() + (positional.repeated ? "..." : "");
      text += positional.required ? " " + word : " [" + word + "]";
    }
    return wrapped(text, columns_) + "\n";
  }

  std::string positionals(const std::vector<OptionRecord>& records) const {
    std::string lines;
    for (const OptionRecord& record : records)
      lines += line(record.names.front(), record.help, column_);
    return lines.empty() ? lines : "\n" + lines;
  }

  std::string verbs(const std::vector<VerbRecord>& records) const {
    std::string text;
    std::string_view group;
    for (const VerbRecord& verb : records) {
      if (verb.group != group) text += "\n" + verb.group + ":\n";
      group = verb.group;
      const std::string names = verb.alias.empty() ? verb.name : verb.name + ", " + verb.alias;
      text += line(names, verb.brief, kVerbColumn);
    }
    return text;
  }

  std::string tasks() const {
    std::string text = "\nTasks:\n";
    for (const auto& [task, command] : kTasks) text += line(task, command, column_);
    return text;
  }

  std::string options(const std::string& heading, const std::vector<OptionRecord>& records) const {
    std::string lines;
    for (const OptionRecord& option : records)
      lines +=
          line(option_text(option), option.help + (option.repeated ? "; repeatable" : ""), column_);
    return lines.empty() ? lines : "\n" + heading + ":\n" + lines;
  }

  // Long commands continue on the next line after a backslash.
  std::string examples(const std::vector<std::string>& commands) const {
    std::string lines = "\nExamples:\n";
    for (const std::string& command : commands) {
      for (const char c : broken("  " + command))
        lines += c == '\n' ? std::string(kBreak) : std::string(1, c);
      lines += "\n";
    }
    return lines;
  }

 private:
  static constexpr const char* kBreak = " \\\n";

  // Returns a line of help: the words to type, and their explanation.
  std::string line(const std::string& typed, const std::string& explanation,
                   std::size_t column) const {
    std::string above;
    std::string lead = std::string(kHelpIndent, ' ') + typed;
    if (lead.size() + 2 > column) {
      above = lead + "\n";
      lead.clear();
    }
    lead.resize(column, ' ');
    return above + hanging(lead, explanation, columns_, column) + "\n";
  }

  std::string broken(const std::string& text) const {
    return text.size() <= columns_ ? text : wrapped(text, columns_ - 2, 2 * kHelpIndent);
  }

  std::size_t columns_;
  std::size_t column_;
};

}  // namespace

std::string tool_help(std::size_t columns) {
  const HelpText help(columns);
  return help.paragraph(kDescription) + "\n" + help.usage("VERB", {}) + help.verbs(verb_records()) +
         help.tasks() + help.options("Options", tool_records()) + "\n" + help.paragraph(kFooter);
}

std::string verb_help(const std::string& name, std::size_t columns) {
  const HelpText help(columns);
  const VerbRecord verb = verb_record(name);
  return help.paragraph(verb.description) + "\n" + help.usage(verb.name, verb.positionals) +
         help.positionals(verb.positionals) + help.options("Options", verb.options) +
         help.options("Options of every verb", common_records()) + help.examples(verb.examples);
}

}  // namespace fsdp::cli
