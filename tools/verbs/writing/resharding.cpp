// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/writing/resharding.h"

#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/families/checks/content_check.h"
#include "formats/families/dcp/output.h"
#include "formats/state/content/content.h"
#include "formats/state/model/shard_spec.h"
#include "tools/verbs/writing/conversion.h"
#include "tools/verbs/writing/producer_note.h"

namespace fsdp::cli {
namespace {

using formats::cat;

std::string ranks_text(std::int64_t ranks) {
  return cat(formats::group_digits(static_cast<std::uint64_t>(ranks)),
             ranks == 1 ? " rank" : " ranks");
}

}  // namespace

void declare_resharding(OptionSet& options, ReshardingOptions& resharding) {
  declare_writing(options, resharding.writing, "Folder to write");
  declare_resume(options, resharding.writing);
  options.integer("-w,--world-size", resharding.world_size, 1, formats::kMaxWorldSize, "N",
                  "Number of ranks of the folder");
  options.required();
  options.list("--shard", resharding.shard, "GLOB",
               "Cut the tensors that match, whatever the rule says");
  options.list("--replicate", resharding.replicate, "GLOB",
               "Do not cut tensors that match, like buffers");
}

int reshard_checkpoint(const std::string& verb, const ReshardingOptions& resharding,
                       const CommonOptions& common, const Streams& streams) {
  const WritingOptions& writing = resharding.writing;
  check_apart(common.path, writing.destination);
  const auto source = open_source(common.path, common, streams);
  const formats::Value content = selected_content(*source, common);
  check_globals(formats::with_own_tensors(*source, content), common);
  const formats::CopyCheck check = formats::check_before_copy(
      *source, content, [] { return formats::interrupted(); }, formats::LibraryTensors::kRefused,
      *common.team);
  formats::DcpOutputOptions options;
  options.world_size = *resharding.world_size;
  options.choice = {formats::globs_of(resharding.shard), formats::globs_of(resharding.replicate)};
  ProducerNames producers;
  options.on_value = [&](const std::string& key, const formats::Value& value) {
    add_producers(value, producers);
    check_globals(formats::Value::dict({{formats::Value::string(key), value}}), common);
  };
  const auto output = formats::plan_dcp_output(*source, content, writing.destination,
                                               writing.output(common), options);
  const std::int64_t from = source->description().ranks;
  const auto cut = static_cast<std::uint64_t>(output->cut_tensors());
  const auto whole = static_cast<std::uint64_t>(output->whole_tensors());
  ReportExtras extras;
  extras.lines.push_back(cat(ranks_text(from), " to ", ranks_text(options.world_size), ": ",
                             formats::group_digits(cut), cut == 1 ? " tensor" : " tensors",
                             " cut along dimension 0, ", formats::group_digits(whole), " whole"));
  note_computed(check, extras);
  note_producers(producers, extras);
  extras.members.emplace_back("source_ranks", from);
  extras.members.emplace_back("world_size", options.world_size);
  extras.members.emplace_back("sharded_tensors", cut);
  extras.members.emplace_back("replicated_tensors", whole);
  return write_output(verb, *source, *output, writing, common, streams, std::move(extras));
}

}  // namespace fsdp::cli
