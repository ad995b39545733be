// SPDX-License-Identifier: Apache-2.0
#include "tools/help_text.h"

#include <algorithm>

#include <CLI/CLI.hpp>

#include "tools/terminal_text.h"

namespace fsdp::cli {
namespace {

// Blanks before a name, and the column that its explanation begins in: a smaller one on terminals
// with fewer columns than kWide.
constexpr std::size_t kIndent = 2;
constexpr std::size_t kColumn = 32;
constexpr std::size_t kNarrowColumn = 24;
constexpr std::size_t kWide = 80;

// "-k, --keys GLOB"; long names stand below each other.
std::string option_text(const CLI::Option& option) {
  std::string text;
  for (const std::string& name : option.get_snames()) text += (text.empty() ? "-" : ", -") + name;
  text = text.empty() ? "    " : text + ", ";
  for (const std::string& name : option.get_lnames()) text += "--" + name;
  if (option.get_type_size_max() == 0) return text;  // a flag
  const std::string type = option.get_type_name();
  return text + " " +
         type.substr(0, type.find(':'));  // CLI11 puts the values allowed behind a colon
}

class HelpText {
 public:
  HelpText(const CLI::App& app, std::size_t columns)
      : app_(app),
        columns_(columns),
        column_(columns == 0 || columns >= kWide ? kColumn : kNarrowColumn) {}

  std::string text() const {
    return paragraph(app_.get_description()) + "\n" + usage() + positionals() + verbs() +
           options(kOwnOptions) + options(kCommonOptions) + "\n" + footer();
  }

 private:
  bool is_tool() const { return app_.get_parent() == nullptr; }

  // On a terminal, lines break where it needs them to.
  std::string paragraph(std::string text) const {
    if (columns_ != 0) std::replace(text.begin(), text.end(), '\n', ' ');
    return wrapped(text, columns_, 0) + "\n";
  }

  // Returns a line of help: the words to type, and their effect.
  std::string line(const std::string& typed, const std::string& explanation) const {
    std::string above;
    std::string lead = std::string(kIndent, ' ') + typed;
    if (lead.size() + 2 > column_) {
      above = lead + "\n";
      lead.clear();
    }
    lead.resize(column_, ' ');
    return above + hanging(lead, explanation, columns_, column_) + "\n";
  }

  std::string usage() const {
    std::string text = "Usage: fsdp-ckpt " + (is_tool() ? "VERB" : app_.get_name()) + " [OPTIONS]";
    for (const CLI::Option* option : app_.get_options()) {
      if (option->get_positional())
        text += " " + option->get_name(true) + (option->get_items_expected_max() > 1 ? "..." : "");
    }
    return wrapped(text, columns_) + "\n";
  }

  std::string positionals() const {
    std::string lines;
    for (const CLI::Option* option : app_.get_options()) {
      if (option->get_positional())
        lines += line(option->get_name(true), option->get_description());
    }
    return lines.empty() ? lines : "\n" + lines;
  }

  std::string verbs() const {
    if (!is_tool()) return {};
    std::string text = "\nVerbs:\n";
    for (const CLI::App* verb : app_.get_subcommands([](const CLI::App*) { return true; })) {
      std::string names = verb->get_name();
      for (const std::string& alias : verb->get_aliases()) names += ", " + alias;
      text += line(names, verb->get_description());
    }
    return text;
  }

  std::string options(const std::string& group) const {
    std::string lines;
    for (const CLI::Option* option : app_.get_options()) {
      if (!option->get_positional() && option->get_group() == group)
        lines += line(option_text(*option), option->get_description());
    }
    return lines.empty() ? lines : "\n" + group + ":\n" + lines;
  }

  // Breaks the example commands of a verb with backslashes.
  std::string footer() const {
    const std::string text = app_.get_footer();
    if (is_tool() || columns_ == 0) return is_tool() ? paragraph(text) : text + "\n";
    std::string lines;
    for (std::size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
      end = std::min(text.find('\n', begin), text.size());
      for (const char c : command(text.substr(begin, end - begin)))
        lines += c == '\n' ? std::string(kBreak) : std::string(1, c);
      lines += "\n";
    }
    return lines;
  }

  static constexpr const char* kBreak = " \\\n";

  std::string command(const std::string& text) const {
    return text.size() <= columns_ ? text : wrapped(text, columns_ - 2, 2 * kIndent);
  }

  const CLI::App& app_;
  std::size_t columns_;
  std::size_t column_;
};

}  // namespace

std::string help_text(const CLI::App& app, std::size_t columns) {
  return HelpText(app, columns).text();
}

}  // namespace fsdp::cli
