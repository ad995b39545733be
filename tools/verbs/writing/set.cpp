// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt set: changes values and constant tensors, drops keys, and takes keys from another
// checkpoint.
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/edit/set_values.h"
#include "formats/changes/edit/splice.h"
#include "formats/families/checks/content_check.h"
#include "formats/front/open.h"
#include "formats/state/content/content.h"
#include "formats/state/content/values_apart.h"
#include "tools/base/reading.h"
#include "tools/base/verbs.h"
#include "tools/text/value_text.h"
#include "tools/verbs/writing/conversion.h"
#include "tools/verbs/writing/name_report.h"
#include "tools/verbs/writing/rewriting.h"

namespace fsdp::cli {
namespace {

using formats::cat;

constexpr std::size_t kShownValue = 60;

class SetVerb : public Verb {
 public:
  SetVerb()
      : Verb(
            "set", "Set values, drop or take keys: keys of another checkpoint, of any format",
            {"fsdp-ckpt set step-400 restart step=0 'optim.param_groups.*.lr=1e-4'",
             "fsdp-ckpt set tuned.pt out.pt --take-from base.pt --take 'model.head.*' --replace"}) {
  }
  void declare(OptionSet& options) override {
    declare_rewriting(options, rewriting_);
    options.more("KEY=VALUE", words_, "Keys, by a glob, and the value that each of them gets");
    options.add("--drop", &drop_);
    options.add("--take-from", &other_);
    options.add("--take", &take_);
    options.add("--replace", &replace_);
    options.add("--retype", &retype_);
  }

  int run(const CommonOptions& common, const Streams& streams) override {
    check_words();
    std::vector<formats::Assignment> assignments;
    for (const std::string& words : words_) assignments.push_back(formats::parse_assignment(words));
    check_apart(common.path, rewriting_.writing.destination);
    const std::shared_ptr<const formats::StoredCheckpoint> source =
        open_source(common.path, common, streams);
    check_rewritable(*source);
    const formats::Value content = selected_content(*source, common);
    const formats::Spliced spliced = splice(source, content, common);
    formats::ValuesSet set =
        formats::set_values(spliced.checkpoint, spliced.content, assignments, retype_);
    ReportExtras extras = extras_of(spliced, set);
    const bool anew = set.tensors_changed || spliced.holds_others;
    if (!anew || source->description().format != "dcp") {
      return write_rewritten(name(), *source, std::move(set.content), rewriting_, common, streams,
                             std::move(extras), set.checkpoint.get());
    }
    return write_folder(*source, set, common, streams, std::move(extras));
  }

 private:
  void check_words() const {
    if (words_.empty() && drop_.empty() && take_.empty() && other_.empty())
      throw Error(ErrorCode::kUsage, "nothing to do: give KEY=VALUE, --drop or --take");
    if (take_.empty() != other_.empty()) {
      throw Error(ErrorCode::kUsage, other_.empty() ? "--take needs --take-from OTHER"
                                                    : "--take-from needs --take GLOB");
    }
    if (replace_ && take_.empty())
      throw Error(ErrorCode::kUsage, "--replace is about the keys of --take");
  }

  formats::Spliced splice(const std::shared_ptr<const formats::Checkpoint>& source,
                          const formats::Value& content, const CommonOptions& common) const {
    try {
      return formats::spliced(source, content, read_splice(common));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kRekeyCollision || replace_) throw;
      throw error.saying(cat(error.what(), "; --replace replaces it, --drop removes the old one"));
    }
  }

  formats::Splice read_splice(const CommonOptions& common) const {
    formats::Splice splice;
    splice.drop = formats::globs_of(drop_);
    splice.take = formats::globs_of(take_);
    splice.replace = replace_;
    if (other_.empty()) return splice;
    check_apart(other_, rewriting_.writing.destination);
    splice.other = formats::with_values_apart(
        formats::open_checkpoint(other_, {common.allowed_globals}),
        {.wanted = [](const std::string&) { return true; }, .only_with_tensors = true});
    return splice;
  }

  static void report_keys(const formats::Spliced& spliced, ReportExtras& extras) {
    const auto dropped = [&](std::size_t i) { return formats::escape(spliced.dropped[i]); };
    const auto taken = [&](std::size_t i) {
      const formats::TakenKey& key = spliced.taken[i];
      return cat(formats::escape(key.key), ": ", key.what,
                 key.was.empty() ? "" : " in place of " + key.was);
    };
    if (!spliced.dropped.empty()) {
      extras.lines.push_back(cat("dropped: ", counted(spliced.dropped.size(), "key")));
      list_names(spliced.dropped.size(), dropped, extras.lines);
    }
    if (!spliced.taken.empty()) {
      extras.lines.push_back(cat("taken: ", counted(spliced.taken.size(), "key")));
      list_names(spliced.taken.size(), taken, extras.lines);
    }
    extras.members.emplace_back(
        "dropped", formats::Json::Array(spliced.dropped.begin(), spliced.dropped.end()));
    formats::Json::Array keys;
    for (const formats::TakenKey& key : spliced.taken) {
      keys.emplace_back(formats::Json::Object{
          {"key", key.key}, {"what", key.what}, {"replaced", text_or_null(key.was)}});
    }
    extras.members.emplace_back("taken", std::move(keys));
  }

  static ReportExtras extras_of(const formats::Spliced& spliced, const formats::ValuesSet& set) {
    ReportExtras extras;
    report_keys(spliced, extras);
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

  // The tensors of a folder lie in archives that are shared with the source; changed tensors need
  // new ones.
  int write_folder(const formats::Checkpoint& source, const formats::ValuesSet& set,
                   const CommonOptions& common, const Streams& streams, ReportExtras extras) {
    const formats::CheckpointDescription& description = source.description();
    if (description.layout != "generic") {
      throw Error(ErrorCode::kUnsupported,
                  cat(description.path, ": a folder of this layout (", description.layout,
                      ") cannot get other tensors; convert it first"));
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
  std::vector<std::string> drop_;
  std::string other_;
  std::vector<std::string> take_;
  bool replace_ = false;
  bool retype_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_set() {
  return std::make_unique<SetVerb>();
}

}  // namespace fsdp::cli
