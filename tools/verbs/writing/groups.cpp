// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt groups: divides and joins parameter groups of optimizers.
#include <charconv>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/edit/param_groups.h"
#include "tools/base/reading.h"
#include "tools/base/verbs.h"
#include "tools/text/value_text.h"
#include "tools/verbs/writing/conversion.h"
#include "tools/verbs/writing/name_report.h"
#include "tools/verbs/writing/rewriting.h"

namespace fsdp::cli {
namespace {

using formats::cat;

constexpr std::size_t kShownOption = 60;

// Parses positions separated by commas.
std::vector<std::size_t> parse_positions(const std::string& text) {
  std::vector<std::size_t> positions;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    std::size_t position = 0;
    const char* const last = text.data() + end;
    const auto [stop, error] = std::from_chars(text.data() + at, last, position);
    if (error != std::errc() || stop != last) {
      throw Error(ErrorCode::kUsage, cat("--join needs positions separated by commas, not ",
                                         formats::quote(text.substr(at, end - at))));
    }
    positions.push_back(position);
    at = end + 1;
  }
  if (positions.size() < 2) throw Error(ErrorCode::kUsage, "--join needs at least two positions");
  return positions;
}

class GroupsVerb : public Verb {
 public:
  GroupsVerb()
      : Verb("groups", "Divide or join parameter groups: those of an optimizer, with other options",
             {"fsdp-ckpt groups step-400 out --split '**.bias' --split '**norm.*' weight_decay=0",
              "fsdp-ckpt groups full.pt out.pt --join 0,1 --options-of 0"}) {}
  void declare(OptionSet& options) override {
    declare_rewriting(options, rewriting_);
    options.more("OPTION=VALUE", words_, "Options that the new groups, or the joined one, get");
    options.add("--split", &split_);
    options.add("--join", &join_);
    options.add("--options-of", &keep_).old_names = {"--keep"};
    options.add("--of", &optimizer_);
  }

  int run(const CommonOptions& common, const Streams& streams) override {
    const formats::GroupEdit edit = read_options();
    check_apart(common.path, rewriting_.writing.destination);
    const auto source = open_source(common.path, common, streams);
    check_rewritable(*source);
    const formats::Value content = selected_content(*source, common);
    formats::GroupsEdited edited = edited_groups(*source, content, edit);
    return write_rewritten(name(), *source, std::move(edited.content), rewriting_, common, streams,
                           extras_of(edited));
  }

 private:
  formats::GroupEdit read_options() const {
    formats::GroupEdit edit;
    if (split_.empty() == join_.empty())
      throw Error(ErrorCode::kUsage, "give either --split GLOB or --join A,B");
    edit.split = formats::globs_of(split_);
    if (!join_.empty()) edit.join = parse_positions(join_);
    if (keep_ && join_.empty()) throw Error(ErrorCode::kUsage, "--options-of is about --join");
    if (keep_) edit.keep = static_cast<std::size_t>(*keep_);
    for (const std::string& words : words_) {
      const std::size_t equals = words.find('=');
      if (equals == std::string::npos || equals == 0) {
        throw Error(ErrorCode::kUsage,
                    cat(formats::quote(words, 200), " is not of the form OPTION=VALUE"));
      }
      edit.options.emplace_back(words.substr(0, equals), words.substr(equals + 1));
    }
    if (!optimizer_.empty()) edit.optimizer = optimizer_;
    return edit;
  }

  // Edits the groups; errors name the options that help.
  formats::GroupsEdited edited_groups(const formats::Checkpoint& source,
                                      const formats::Value& content,
                                      const formats::GroupEdit& edit) const {
    try {
      return formats::edit_groups(source, content, edit);
    } catch (const Error& error) {
      std::string help;
      if (error.code() == ErrorCode::kMismatch)
        help = "; --options-of N takes the options of group N, OPTION=VALUE sets one";
      if (error.code() == ErrorCode::kUsage && !edit.optimizer && !edit.join.empty())
        help = "; --of KEY chooses one";
      if (help.empty()) throw;
      throw error.saying(error.what() + help);
    }
  }

  static ReportExtras extras_of(const formats::GroupsEdited& edited) {
    ReportExtras extras;
    formats::Json::Array optimizers;
    for (const formats::EditedOptimizer& optimizer : edited.optimizers) {
      extras.lines.push_back(
          cat(optimizer.key.empty() ? "the optimizer" : formats::escape(optimizer.key), ": ",
              counted(optimizer.old_groups, "group"), " became ", optimizer.groups.size()));
      add_lines(optimizer, extras.lines);
      optimizers.push_back(json_of(optimizer));
    }
    extras.members.emplace_back("optimizers", std::move(optimizers));
    return extras;
  }

  static void add_lines(const formats::EditedOptimizer& optimizer,
                        std::vector<std::string>& lines) {
    const auto group = [&](std::size_t i) {
      formats::SomeNames from;
      for (const std::size_t g : optimizer.groups[i].from) from.add(g);
      return cat("group ", i, ": ", counted(optimizer.groups[i].parameters.size(), "parameter"),
                 " of group ", from.text());
    };
    list_names(optimizer.groups.size(), group, lines);
    const auto change = [&](std::size_t i) {
      const formats::OptionChange& one = optimizer.changes[i];
      return cat("group ", one.group, ": ", formats::escape(one.option), ": ",
                 value_text(one.was, kShownOption), " -> ", value_text(one.now, kShownOption));
    };
    list_names(optimizer.changes.size(), change, lines);
  }

  static formats::Json::Object json_of(const formats::EditedOptimizer& optimizer) {
    formats::Json::Array groups;
    for (const formats::EditedGroup& group : optimizer.groups) {
      groups.emplace_back(formats::Json::Object{
          {"from", formats::Json::Array(group.from.begin(), group.from.end())},
          {"parameters", formats::Json::Array(group.parameters.begin(), group.parameters.end())}});
    }
    formats::Json::Array changes;
    for (const formats::OptionChange& change : optimizer.changes) {
      changes.emplace_back(formats::Json::Object{{"group", static_cast<std::int64_t>(change.group)},
                                                 {"option", change.option},
                                                 {"was", value_json(change.was)},
                                                 {"now", value_json(change.now)}});
    }
    return {{"key", optimizer.key},
            {"form", std::string(formats::form_name(optimizer.form))},
            {"old_groups", static_cast<std::int64_t>(optimizer.old_groups)},
            {"groups", std::move(groups)},
            {"changes", std::move(changes)}};
  }

  RewritingOptions rewriting_;
  std::vector<std::string> words_;
  std::vector<std::string> split_;
  std::string join_;
  std::optional<std::int64_t> keep_;
  std::string optimizer_;
};

}  // namespace

std::unique_ptr<Verb> make_groups() {
  return std::make_unique<GroupsVerb>();
}

}  // namespace fsdp::cli
