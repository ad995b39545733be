// SPDX-License-Identifier: Apache-2.0
// The manual page.
#include "formats/bytes/base/text.h"
#include "tools/command/verb_record.h"

namespace fsdp::cli {
namespace {

using formats::cat;

// Escapes text for roff: special characters, hyphens as in commands, and lines that look like
// requests.
std::string roff(const std::string& text) {
  constexpr std::string_view kSpecial = "\\-'~^`";
  constexpr std::string_view kEscaped[] = {"\\e", "\\-", "\\(aq", "\\(ti", "\\(ha", "\\(ga"};
  std::string out;
  for (const char c : text) {
    const std::size_t special = kSpecial.find(c);
    if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) {
      out += std::string("\\&") + c;
    } else if (special != kSpecial.npos) {
      out += kEscaped[special];
    } else {
      out += c;
    }
  }
  return out;
}

void options_text(std::string& out, const std::vector<OptionRecord>& options) {
  for (const OptionRecord& option : options) {
    out += ".TP\n";
    std::string names;
    for (const std::string& name : option.names)
      names += (names.empty() ? "\\fB" : ", \\fB") + roff(name) + "\\fR";
    if (!option.type.empty() && option.names[0].starts_with('-'))
      names += " \\fI" + roff(option.type) + "\\fR";
    out += names + "\n" + roff(option.help);
    if (option.repeated) out += "; may be given several times";
    if (option.required && option.names[0].starts_with('-')) out += "; must be given";
    out += ".\n";
  }
}

void verb_text(std::string& out, const VerbRecord& verb) {
  out += cat(".SS ", roff(verb.name), "\n.B fsdp\\-ckpt ", roff(verb.name), "\n.RI [ OPTIONS ]");
  for (const OptionRecord& word : verb.positionals) {
    out += word.required ? cat("\n.I ", roff(word.names[0]))
                         : cat("\n.RI [ ", roff(word.names[0]), word.repeated ? " ... ]" : " ]");
  }
  out += "\n.PP\n" + roff(verb.description) + ".";
  if (!verb.alias.empty()) out += cat("\nAlso called \\fB", roff(verb.alias), "\\fR.");
  out += "\n";
  options_text(out, verb.positionals);
  options_text(out, verb.options);
  out += ".PP\nExamples:\n.PP\n.nf\n.RS\n";
  for (const std::string& example : verb.examples) out += roff(example) + "\n";
  out += ".RE\n.fi\n";
}

constexpr const char* kHead =
    ".SH NAME\n"
    "fsdp\\-ckpt \\- inspect, verify, compare and rewrite PyTorch checkpoints\n"
    ".SH SYNOPSIS\n"
    ".B fsdp\\-ckpt\n"
    ".I VERB\n"
    ".RI [ OPTIONS ]\n"
    ".I PATH\n"
    ".RI [ OUT ]\n"
    ".br\n"
    ".B fsdp\\-ckpt \\-\\-version\n"
    ".br\n"
    ".B fsdp\\-ckpt\n"
    ".B help\n"
    ".I VERB\n"
    ".SH DESCRIPTION\n"
    "Reads sharded and whole checkpoints of PyTorch without Python and without running anything\n"
    "of what it reads.\n"
    ".I PATH\n"
    "is a folder or a file of any format; its content decides, never its name.\n"
    "Results go to standard output; progress, notes, warnings and errors to standard error.\n"
    "Options may also stand before the verb.\n"
    "An output appears whole or not at all.\n";

constexpr const char* kTail =
    ".SH SELECTION\n"
    "A glob matches the whole key:\n"
    ".B *\n"
    "is any text without a dot,\n"
    ".B **\n"
    "any text,\n"
    ".B ?\n"
    "one character but a dot,\n"
    ".B [a\\-z]\n"
    "and\n"
    ".B [!a\\-z]\n"
    "one of a set.\n"
    ".SH SIZES\n"
    "4096, 64K and 256MiB (powers of 1024), 5GB (powers of 1000).\n"
    ".SH EXIT STATUS\n"
    ".TP\n"
    ".B 0\n"
    "Done; the checkpoint is sound, the checkpoints are the same, the gate is passed.\n"
    ".TP\n"
    ".B 1\n"
    "The answer is no: damage was found, something differs, a gate tripped.\n"
    ".TP\n"
    ".B 2\n"
    "It could not be done: usage, not found, malformed, unsupported, input and output.\n"
    ".TP\n"
    ".B 128 + n\n"
    "Signal n asked to stop; what was begun is removed.\n"
    ".TP\n"
    ".B 141\n"
    "The reader of standard output went away.\n"
    ".SH ENVIRONMENT\n"
    ".TP\n"
    ".B NO_COLOR\n"
    "No colours, unless\n"
    ".B \\-\\-color always\n"
    "asks for them.\n"
    ".TP\n"
    ".B TERM=dumb\n"
    "The same.\n"
    ".TP\n"
    ".B TMPDIR\n"
    "Where data that had to be decompressed lie meanwhile; /tmp if not set.\n";

}  // namespace

std::string man_page() {
  std::string out =
      cat(".\\\" Made by fsdp-ckpt --print-man.\n.TH FSDP\\-CKPT 1 \"\" \"fsdp\\-ckpt ",
          FSDP_VERSION, "\" \"User Commands\"\n", kHead);
  out += ".SH VERBS\n";
  for (const VerbRecord& verb : verb_records()) verb_text(out, verb);
  out += ".SH OPTIONS OF EVERY VERB\n";
  options_text(out, common_records());
  return out + kTail;
}

}  // namespace fsdp::cli
