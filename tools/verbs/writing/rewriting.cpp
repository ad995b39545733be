// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/writing/rewriting.h"

#include <algorithm>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/families/checks/content_check.h"
#include "formats/families/dcp/rewritten_dcp.h"
#include "formats/front/create.h"
#include "formats/state/content/content.h"
#include "tools/verbs/writing/producer_note.h"

namespace fsdp::cli {
namespace {

using formats::cat;

// The names of a million parameters take less.
constexpr std::uint64_t kMaxTextFileBytes = 64U << 20U;
// The most files that are named one by one.
constexpr std::size_t kMaxNamed = 5;
// A folder of several safetensors files is split again at the size that Hugging Face's writers use.
constexpr std::uint64_t kShardBytes = 5'000'000'000;

void add_folder_report(const std::string& source, const formats::RewrittenDcp& output,
                       const RewritingOptions& rewriting, ReportExtras& extras) {
  const auto& left = output.left_behind();
  if (!left.empty()) {
    formats::SomeNames names(kMaxNamed);
    for (const std::string& name : left) names.add(formats::quote(name));
    extras.lines.push_back("not copied, since it is not part of the checkpoint: " + names.text());
  }
  if (output.unneeded_files() != 0) {
    extras.lines.push_back(cat("left out: ", output.unneeded_files(),
                               output.unneeded_files() == 1 ? " data file" : " data files",
                               " that are not needed"));
  }
  if (output.dead_bytes() != 0) {
    extras.lines.push_back(
        cat("stays on disk: ", formats::human_bytes(output.dead_bytes()),
            " of dropped or replaced data, in files that hold other data as well"));
  }
  const auto& files = output.plan().files;
  const bool linked =
      std::any_of(files.begin(), files.end(), [](const auto& file) { return file.linked; });
  if (!linked && rewriting.link) {
    const std::string_view why = formats::is_url(rewriting.writing.destination) ? "to a store"
                                 : formats::is_url(source)                      ? "from a store"
                                                           : "on another file system";
    extras.lines.push_back(cat(why, ": data files are copied, none is shared"));
  }
  extras.members.emplace_back("left_behind", formats::Json::Array(left.begin(), left.end()));
  extras.members.emplace_back("unneeded_files", output.unneeded_files());
  extras.members.emplace_back("dead_bytes", output.dead_bytes());
}

}  // namespace

void declare_rewriting(OptionSet& options, RewritingOptions& rewriting) {
  declare_writing(options, rewriting.writing, "File or folder to write, in the form of PATH");
  options.add("--copy", &rewriting.link).clears = true;
}

void check_rewritable(const formats::Checkpoint& source) {
  const formats::CheckpointDescription& description = source.description();
  if (!formats::own_output_word(description).empty()) return;
  throw Error(ErrorCode::kUnsupported,
              cat(description.path, ": ", description.format, " (", description.layout,
                  ") cannot be written again in this form; convert it first, or name one of its "
                  "folders"));
}

int write_rewritten(const std::string& verb, const formats::StoredCheckpoint& stored,
                    formats::Value content, const RewritingOptions& rewriting,
                    const CommonOptions& common, const Streams& streams, ReportExtras extras,
                    const formats::Checkpoint* changed) {
  const std::string& destination = rewriting.writing.destination;
  const formats::Checkpoint& source = changed == nullptr ? stored : *changed;
  const std::string format = formats::own_output_word(source.description());
  if (format == "dcp") {
    const auto output =
        formats::plan_rewritten_dcp(stored, common.path, content, destination,
                                    {rewriting.writing.output(common), rewriting.link});
    add_folder_report(source.description().path, *output, rewriting, extras);
    return write_output(verb, source, *output, rewriting.writing, common, streams,
                        std::move(extras));
  }
  formats::check_before_copy(source, content, [] { return formats::interrupted(); });
  content = formats::with_values(source, content);
  check_globals(formats::with_own_tensors(source, content), common);
  note_producers(content, format, extras);
  formats::CreateOptions options;
  options.output = rewriting.writing.output(common);
  if (format == "safetensors" && source.description().layout == "hf-sharded")
    options.max_shard_bytes = kShardBytes;
  const auto output = formats::plan_output(format, source, content, destination, options);
  return write_output(verb, source, *output, rewriting.writing, common, streams, std::move(extras));
}

std::string read_text_file(const std::string& path) {
  const auto file = formats::file_at(path);
  if (file->size() > kMaxTextFileBytes) {
    throw Error(ErrorCode::kLimitSize,
                cat(file->name(), ": has ", file->size(), " bytes, at most ", kMaxTextFileBytes));
  }
  std::string text(file->size(), '\0');
  file->read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace fsdp::cli
