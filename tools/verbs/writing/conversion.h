// SPDX-License-Identifier: Apache-2.0
// Rewrites a whole checkpoint in a format: the common part of consolidate and convert.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/model/name_rules.h"
#include "formats/state/rewrite/rename.h"
#include "tools/base/common.h"
#include "tools/base/option_set.h"
#include "tools/verbs/writing/writing.h"

namespace fsdp::cli {

struct ConversionOptions {
  WritingOptions writing;                        // without a destination: nothing is written
  std::string format;                            // empty: by the destination's suffix
  std::optional<std::uint64_t> max_shard_bytes;  // safetensors: a folder of files
  bool drop_values = false;                 // safetensors: leave out values that are not tensors
  std::string dtype;                        // floating tensors are cast to it; empty: no cast
  std::vector<std::string> strip_prefixes;  // as for `rename --strip-prefix`
  bool strip_unasked = false;               // no message if no name has such a prefix
  std::optional<std::int64_t> world_size;   // sharded formats
  bool carries = false;                     // accelerate: the files beside such a source go along
  // A checkpoint or a list that has the names and shapes of the parameters in flat ones; empty:
  // none.
  std::string names_from;
  // The verb needs the names of modules, which Megatron-Core's folders join.
  bool by_module = false;
  // Else an optimizer in buckets is left out: finding it reads all of it.
  bool with_optimizer = true;
  bool whole_tensors = false;  // the verb needs tensors inside values as tensors of the checkpoint
};

// Returns the formats for --to in which any content can be written.
std::vector<std::string> output_formats();
// Returns these formats, and Megatron-Core's folders, whose names and shapes only
// prepare_conversion makes.
std::vector<std::string> converted_formats();

// Declares --to with these formats, the options of every writing verb except OUT, and the options
// above except the prefixes and the world size.
void declare_conversion_options(OptionSet& options, ConversionOptions& conversion,
                                const std::vector<std::string>& formats);
// Declares OUT, and the options above except the world size.
void declare_conversion(OptionSet& options, ConversionOptions& conversion,
                        const std::vector<std::string>& formats);

// Declares --world-size.
void declare_world_size(OptionSet& options, ConversionOptions& conversion);

// Declares --names-from.
void declare_names_from(OptionSet& options, ConversionOptions& conversion);

// Opens a checkpoint, and notes other checkpoints in its folder that are not part of it.
// `names_from`: see ConversionOptions.
// Throws: kUsage if names are given, and the checkpoint has no flat parameters; what
// open_checkpoint and read_parameter_list throw.
std::unique_ptr<formats::StoredCheckpoint> open_source(const std::string& path,
                                                       const CommonOptions& common,
                                                       const Streams& streams,
                                                       const std::string& names_from = {});

// Returns the content of the checkpoint, narrowed to the keys of `common`.  Throws: kNotFound if no
// key matches.
formats::Value selected_content(const formats::Checkpoint& source, const CommonOptions& common);

// Renames content, see formats::rename_content.  Errors about the rules name the checkpoint.
formats::Renamed renamed_content(const formats::Checkpoint& source, const formats::Value& content,
                                 const formats::NameRules& rules, const CommonOptions& common);

// Makes tensors inside selected values tensors of the checkpoint.
std::unique_ptr<formats::Checkpoint> with_tensors_apart(std::unique_ptr<formats::Checkpoint> source,
                                                        const CommonOptions& common);

// Parses the words of --strip-prefix: "auto" or prefixes.
formats::NameRules strip_rules(const std::vector<std::string>& words);

// Content whose tensors belong to another checkpoint, which reads the first one.
struct Changed {
  std::shared_ptr<const formats::Checkpoint> checkpoint;  // nullptr: still the first checkpoint
  formats::Value content;
  bool layers_apart = false;  // see megatron::ReformOptions
};
// Makes new content from a checkpoint's content, which has no placeholders, and reports the
// changes.
using ContentChange = std::function<Changed(const formats::Checkpoint& source,
                                            const formats::Value& content, ReportExtras& extras)>;

// Refuses to narrow a checkpoint that keeps a layout which needs all of it.  `word`: of the
// output's format.  Throws: kUsage with `hint`.
void refuse_selection(const CommonOptions& common, const std::string& word, Hint hint = {});

// Returns the name of the output's format: by --to, else by the destination's suffix.  Throws:
// kUsage.
std::string output_format_of(const ConversionOptions& conversion);

// Plans and writes an output of that format.  `content` has no placeholders.  `layout`: see
// CreateOptions.
// Returns 0.  Throws: Error; nothing is written then.
int write_converted(const std::string& verb, const formats::Checkpoint& source,
                    const formats::Value& content, const std::string& format,
                    const ConversionOptions& conversion, const CommonOptions& common,
                    const Streams& streams, ReportExtras extras, const std::string& layout = {});

// What a conversion writes.
struct Prepared {
  // The checkpoints that changed sources read, each the previous one.
  std::vector<std::shared_ptr<const formats::Checkpoint>> originals;
  std::shared_ptr<const formats::Checkpoint> source;  // the checkpoint to which the content refers
  formats::Value content;                             // without placeholders
  std::string layout;                                 // torch_dist: see CreateOptions
  ReportExtras extras;
};
// Opens and checks the source, and edits its content by the options.  `change` is applied after
// prefixes are stripped and before elements are cast.  Throws: Error.
Prepared prepare_conversion(const std::string& format, const ConversionOptions& conversion,
                            const CommonOptions& common, const Streams& streams,
                            const ContentChange& change);

// Prepares and writes a conversion.  Returns 0.  Throws: Error; nothing is written then.
int convert_checkpoint(const std::string& verb, const ConversionOptions& conversion,
                       const CommonOptions& common, const Streams& streams,
                       const ContentChange& change = {});

}  // namespace fsdp::cli
