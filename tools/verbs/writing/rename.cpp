// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt rename: changes the names of parameters and keys.
#include "formats/state/rewrite/rename.h"

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "tools/base/verbs.h"
#include "tools/verbs/writing/conversion.h"
#include "tools/verbs/writing/name_report.h"
#include "tools/verbs/writing/rewriting.h"

namespace fsdp::cli {
namespace {

using formats::cat;

class RenameVerb : public Verb {
 public:
  RenameVerb()
      : Verb("rename", "Give keys other names; folders share their data with the source",
             {"fsdp-ckpt rename step-400 clean --strip-prefix auto",
              "fsdp-ckpt rename full.pt new.pt --rename encoder=backbone --drop '**.running_*'"}) {}
  void declare(OptionSet& options) override {
    declare_rewriting(options, rewriting_);
    options.add("--strip-prefix", &strip_);
    options.add("--rename", &renames_);
    options.add("--rename-file", &map_).old_names = {"--map"};
    options.add("--drop", &drop_);
  }

  int run(const CommonOptions& common, const Streams& streams) override {
    const formats::NameRules rules = read_rules();
    if (rules.empty()) {
      throw Error(ErrorCode::kUsage,
                  "nothing to do: give --strip-prefix, --rename, --rename-file or --drop");
    }
    check_apart(common.path, rewriting_.writing.destination);
    const auto source = open_source(common.path, common, streams);
    check_rewritable(*source);
    formats::Renamed renamed =
        renamed_content(*source, selected_content(*source, common), rules, common);
    ReportExtras extras;
    add_name_report(renamed, rules.strip_wrappers, rewriting_.writing.dry_run, extras);
    return write_rewritten(name(), *source, std::move(renamed.content), rewriting_, common, streams,
                           std::move(extras));
  }

 private:
  formats::NameRules read_rules() const {
    formats::NameRules rules = strip_rules(strip_);
    for (const std::string& text : renames_)
      rules.renames.push_back(formats::parse_name_rule(text));
    if (!map_.empty()) {
      const std::string text = read_text_file(map_);
      try {
        for (formats::NameRule& rule : formats::parse_name_map(text))
          rules.renames.push_back(std::move(rule));
      } catch (const Error& error) {
        throw error.in(formats::escape(map_));
      }
    }
    rules.drop = drop_;
    return rules;
  }

  RewritingOptions rewriting_;
  std::vector<std::string> strip_;
  std::vector<std::string> renames_;
  std::string map_;
  std::vector<std::string> drop_;
};

}  // namespace

std::unique_ptr<Verb> make_rename() {
  return std::make_unique<RenameVerb>();
}

}  // namespace fsdp::cli
