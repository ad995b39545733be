// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt shard and reshard: a full checkpoint becomes a DCP folder of N ranks, and a checkpoint
// of M ranks one of N ranks, in its own layout.
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/store/place.h"
#include "formats/families/checks/content_check.h"
#include "formats/families/dcp/output.h"
#include "formats/front/create.h"
#include "formats/front/open.h"
#include "formats/front/step.h"
#include "formats/state/content/content.h"
#include "formats/state/rewrite/optimizer_ids.h"
#include "tools/base/agreement.h"
#include "tools/base/reading.h"
#include "tools/base/runs.h"
#include "tools/base/verbs.h"
#include "tools/verbs/writing/conversion.h"
#include "tools/verbs/writing/producer_note.h"

namespace fsdp::cli {
namespace {

using formats::cat;

constexpr const char* kSameLayout = "same";
constexpr const char* kDcpLayout = "dcp";

std::string ranks_text(std::int64_t ranks) {
  return counted(static_cast<std::uint64_t>(ranks), "rank");
}

class ShardVerb : public Verb {
 public:
  // `keeps`: trainers' folders keep their layout.
  ShardVerb(std::string name, std::string description, std::vector<std::string> examples,
            bool keeps)
      : Verb(std::move(name), std::move(description), std::move(examples)), keeps_(keeps) {}
  void declare(OptionSet& options) override {
    declare_writing(options, writing_, "Folder to write");
    options.add("--resume", &writing_.resume);
    options.add("--world-size", &world_size_).required = true;
    if (keeps_) options.add("--layout", &layout_).choices = {kSameLayout, kDcpLayout};
    options.add("--shard", &shard_);
    options.add("--replicate", &replicate_);
  }
  bool divides() const override { return true; }
  int run(const CommonOptions& common, const Streams& streams) override {
    check_apart(common.path, writing_.destination);
    const auto source =
        formats::open_checkpoint(common.path, {common.allowed_globals, common.team});
    agree_on_source(common, common.path, *source);
    // Not for a single file of a rank.
    const bool keeps = keeps_ && layout_ != kDcpLayout && formats::is_folder(common.path);
    const formats::Value content = selected_content(*source, common);
    check_globals(formats::with_own_tensors(*source, content), common);
    const formats::CopyCheck check = formats::check_before_copy(
        *source, content, [] { return formats::interrupted(); }, formats::LibraryTensors::kRefused,
        *common.team);
    ProducerNames producers;
    auto output = keeps ? kept_output(*source, content, producers, common) : nullptr;
    const bool kept = output != nullptr;
    if (!kept) {
      // With the layout, other files of the folder go along.
      note_unread(common.path, *source, common, streams);
      output = dcp_output(*source, content, producers, common);
    }
    const std::int64_t from = source->description().ranks;
    const std::uint64_t cut = output->plan().cut_tensors;
    const std::uint64_t whole = output->plan().whole_tensors;
    ReportExtras extras;
    extras.lines.push_back(
        cat(ranks_text(from), " to ", ranks_text(*world_size_), ": ", counted(cut, "tensor"),
            kept && output->plan().format != "accelerate" ? " cut, " : " cut along dimension 0, ",
            formats::group_digits(whole), " whole"));
    note_computed(check, extras);
    note_producers(producers, extras);
    extras.members.emplace_back("source_ranks", from);
    extras.members.emplace_back("world_size", *world_size_);
    extras.members.emplace_back("sharded_tensors", cut);
    extras.members.emplace_back("replicated_tensors", whole);
    return write_output(name(), *source, *output, writing_, common, streams, std::move(extras));
  }

 private:
  std::unique_ptr<formats::Output> dcp_output(const formats::Checkpoint& source,
                                              const formats::Value& content,
                                              ProducerNames& producers,
                                              const CommonOptions& common) const {
    formats::DcpOutputOptions options;
    options.world_size = *world_size_;
    options.choice = {formats::globs_of(shard_), formats::globs_of(replicate_)};
    options.on_value = [&](const std::string& key, const formats::Value& value) {
      add_producers(value, producers);
      check_globals(formats::Value::dict({{formats::Value::string(key), value}}), common);
    };
    return formats::plan_dcp_output(source, content, writing_.destination, writing_.output(common),
                                    options);
  }

  // Plans the output in the layout of the source, or in those of its parts; null if it is not one
  // that is kept.
  std::unique_ptr<formats::Output> kept_output(const formats::Checkpoint& source,
                                               const formats::Value& content,
                                               ProducerNames& producers,
                                               const CommonOptions& common) const {
    formats::CreateOptions options;
    options.output = writing_.output(common);
    options.world_size = *world_size_;
    options.beside = {common.path, common.allowed_globals};
    const std::string word = formats::kept_output_word(source.description());
    std::unique_ptr<formats::Output> output;
    if (word.empty()) {
      output = source.description().format != "step"
                   ? nullptr
                   : formats::plan_step(source, writing_.destination, options,
                                        {common.allowed_globals, common.team});
      if (output == nullptr) return nullptr;
    }
    if (!shard_.empty() || !replicate_.empty()) {
      throw Error(
          ErrorCode::kUsage,
          cat("--shard and --replicate are for folders of torch.distributed.checkpoint, and ",
              formats::escape(common.path), " is another one"),
          {Remedy::kOtherLayout});
    }
    refuse_selection(common, word.empty() ? "step" : word, {Remedy::kOtherLayout});
    formats::Value whole = formats::with_values(source, content);
    whole = formats::with_integer_ids(source, whole);
    check_globals(whole, common);
    add_producers(whole, producers);
    if (output != nullptr) return output;
    return formats::plan_output(word, source, whole, writing_.destination, options);
  }

  bool keeps_;
  WritingOptions writing_;
  std::string layout_ = kSameLayout;
  std::optional<std::int64_t> world_size_;
  std::vector<std::string> shard_;
  std::vector<std::string> replicate_;
};

}  // namespace

std::unique_ptr<Verb> make_shard() {
  return std::make_unique<ShardVerb>(
      "shard", "Cut a full checkpoint for ranks: into a DCP folder of N ranks, as FSDP saves it",
      std::vector<std::string>{
          "fsdp-ckpt shard full.pt step-0 --world-size 8",
          "fsdp-ckpt shard model.safetensors step-0 --world-size 64 --dry-run"},
      false);
}

std::unique_ptr<Verb> make_reshard() {
  return std::make_unique<ShardVerb>(
      "reshard", "Lay shards out for N ranks: from any number of them, in the same layout",
      std::vector<std::string>{"fsdp-ckpt reshard step-400 step-400-on-6 --world-size 6",
                               "fsdp-ckpt reshard checkpoint-400 out --world-size 4 --layout dcp"},
      true);
}

}  // namespace fsdp::cli
