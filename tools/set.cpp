// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt set: values and constant tensors get other contents.
#include "formats/base/error.h"
#include "formats/base/interrupt.h"
#include "formats/base/text.h"
#include "formats/checks/content_check.h"
#include "formats/content/content.h"
#include "formats/edit/set_values.h"
#include "tools/conversion.h"
#include "tools/name_report.h"
#include "tools/rewriting.h"
#include "tools/value_text.h"
#include "tools/verbs.h"

namespace fsdp::cli {
namespace {

using formats::cat;

constexpr std::size_t kShownValue = 60;

class SetVerb : public Verb {
 public:
  std::string name() const override { return "set"; }
  std::string description() const override {
    return "Give values other contents: a step, a learning rate; folders share their data";
  }
  std::vector<std::string> examples() const override {
    return {"fsdp-ckpt set step-400 restart step=0 'optim.param_groups.*.lr=1e-4'",
            "fsdp-ckpt set last.ckpt restart.ckpt 'optimizer_states.0.state.*.step=0'"};
  }
  void declare(OptionSet& options) override {
    declare_rewriting(options, rewriting_);
    options.more("KEY=VALUE", words_, "Keys, by a glob, and the value that each of them gets");
    options.required();
    options.flag("--retype", retype_, "Values may get another type, as the text says it");
  }

  int run(const CommonOptions& common, const Streams& streams) override {
    std::vector<formats::Assignment> assignments;
    for (const std::string& words : words_) assignments.push_back(formats::parse_assignment(words));
    check_apart(common.path, rewriting_.writing.destination);
    const std::shared_ptr<const formats::Checkpoint> source = open_source(common);
    check_rewritable(*source);
    formats::ValuesSet set =
        formats::set_values(source, selected_content(*source, common), assignments, retype_);
    ReportExtras extras = extras_of(set);
    if (!set.tensors_changed || source->description().format != "dcp") {
      return write_rewritten(name(), *set.checkpoint, std::move(set.content), rewriting_, common,
                             streams, std::move(extras));
    }
    return write_folder(*source, set, common, streams, std::move(extras));
  }

 private:
  static ReportExtras extras_of(const formats::ValuesSet& set) {
    ReportExtras extras;
    const auto line = [&](std::size_t i) {
      const formats::ValueChange& change = set.changes[i];
      const std::string was =
          change.tensor.empty() ? value_text(change.was, kShownValue) : change.tensor;
      return cat(formats::escape(change.key), ": ", was, " -> ",
                 value_text(change.now, kShownValue));
    };
    list_names(set.changes.size(), line, extras.lines);
    formats::Json::Array changes;
    for (const formats::ValueChange& change : set.changes) {
      changes.emplace_back(formats::Json::Object{
          {"key", change.key},
          {"tensor", text_or_null(change.tensor)},
          {"was", change.tensor.empty() ? value_json(change.was) : formats::Json()},
          {"now", value_json(change.now)}});
    }
    extras.members.emplace_back("changes", std::move(changes));
    return extras;
  }

  // A folder's tensors lie in archives that are shared; those that change need new ones.
  int write_folder(const formats::Checkpoint& source, const formats::ValuesSet& set,
                   const CommonOptions& common, const Streams& streams, ReportExtras extras) {
    const formats::CheckpointDescription& description = source.description();
    if (description.layout != "generic") {
      throw Error(ErrorCode::kUnsupported,
                  cat(description.path, ": tensors of a folder of this layout (",
                      description.layout, ") cannot be set; convert it first"));
    }
    formats::check_before_copy(*set.checkpoint, set.content, [] { return formats::interrupted(); });
    ConversionOptions conversion;
    conversion.writing = rewriting_.writing;
    conversion.world_size = description.ranks;
    extras.lines.emplace_back("tensors change, so data files are written anew");
    return write_converted(name(), *set.checkpoint,
                           formats::with_values(*set.checkpoint, set.content), "dcp", conversion,
                           common, streams, std::move(extras));
  }

  RewritingOptions rewriting_;
  std::vector<std::string> words_;
  bool retype_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_set() {
  return std::make_unique<SetVerb>();
}

}  // namespace fsdp::cli
