// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt shard and reshard: a full checkpoint, or a DCP folder of M ranks, becomes a DCP folder
// of N ranks.
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/families/checks/content_check.h"
#include "formats/families/dcp/output.h"
#include "formats/state/content/content.h"
#include "tools/base/reading.h"
#include "tools/base/verbs.h"
#include "tools/verbs/writing/conversion.h"
#include "tools/verbs/writing/producer_note.h"

namespace fsdp::cli {
namespace {

using formats::cat;

std::string ranks_text(std::int64_t ranks) {
  return counted(static_cast<std::uint64_t>(ranks), "rank");
}

class ShardVerb : public Verb {
 public:
  using Verb::Verb;
  void declare(OptionSet& options) override {
    declare_writing(options, writing_, "Folder to write");
    options.add("--resume", &writing_.resume);
    options.add("--world-size", &world_size_).required = true;
    options.add("--shard", &shard_);
    options.add("--replicate", &replicate_);
  }
  bool divides() const override { return true; }
  int run(const CommonOptions& common, const Streams& streams) override {
    check_apart(common.path, writing_.destination);
    const auto source = open_source(common.path, common, streams);
    const formats::Value content = selected_content(*source, common);
    check_globals(formats::with_own_tensors(*source, content), common);
    const formats::CopyCheck check = formats::check_before_copy(
        *source, content, [] { return formats::interrupted(); }, formats::LibraryTensors::kRefused,
        *common.team);
    formats::DcpOutputOptions options;
    options.world_size = *world_size_;
    options.choice = {formats::globs_of(shard_), formats::globs_of(replicate_)};
    ProducerNames producers;
    options.on_value = [&](const std::string& key, const formats::Value& value) {
      add_producers(value, producers);
      check_globals(formats::Value::dict({{formats::Value::string(key), value}}), common);
    };
    const auto output = formats::plan_dcp_output(*source, content, writing_.destination,
                                                 writing_.output(common), options);
    const std::int64_t from = source->description().ranks;
    const auto cut = static_cast<std::uint64_t>(output->cut_tensors());
    const auto whole = static_cast<std::uint64_t>(output->whole_tensors());
    ReportExtras extras;
    extras.lines.push_back(cat(ranks_text(from), " to ", ranks_text(options.world_size), ": ",
                               counted(cut, "tensor"), " cut along dimension 0, ",
                               formats::group_digits(whole), " whole"));
    note_computed(check, extras);
    note_producers(producers, extras);
    extras.members.emplace_back("source_ranks", from);
    extras.members.emplace_back("world_size", options.world_size);
    extras.members.emplace_back("sharded_tensors", cut);
    extras.members.emplace_back("replicated_tensors", whole);
    return write_output(name(), *source, *output, writing_, common, streams, std::move(extras));
  }

 private:
  WritingOptions writing_;
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
          "fsdp-ckpt shard model.safetensors step-0 --world-size 64 --dry-run"});
}

std::unique_ptr<Verb> make_reshard() {
  return std::make_unique<ShardVerb>(
      "reshard", "Lay shards out for N ranks: from any number of them, as FSDP saves it",
      std::vector<std::string>{
          "fsdp-ckpt reshard step-400 step-400-on-6 --world-size 6",
          "fsdp-ckpt reshard step-400 out --world-size 4 --replicate 'model.**.table'"});
}

}  // namespace fsdp::cli
