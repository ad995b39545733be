// SPDX-License-Identifier: Apache-2.0
// The formats of checkpoints: a table with a row for each.  Finding a format, opening, writing and
// naming it, and the words of options follow from the rows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/bytes/base/team.h"
#include "formats/bytes/files/listing.h"
#include "formats/families/trainers/carried_files.h"
#include "formats/state/content/output.h"

namespace fsdp::formats::flat {
struct ParameterList;
}

namespace fsdp::formats {

struct OpenOptions {
  // Python names in pickles, as "module.name", that count as plain data besides those the formats
  // know.
  std::set<std::string> allowed_globals;
  // The processes that open the checkpoint together.  In a folder of torch.distributed.checkpoint,
  // only the leader reads the metadata, for all of them.  Never null.
  Team* team = &this_process();
  // The parameters in the flat ones of FSDP1's LOCAL_STATE_DICT (front/parameter_list.h); null:
  // they stay flat.  Other formats do not need it.
  std::shared_ptr<const flat::ParameterList> parameters = {};
};

struct CreateOptions {
  OutputOptions output;
  std::optional<std::uint64_t> max_shard_bytes;  // safetensors: split into files, with an index
  bool drop_values = false;           // safetensors: leave out values that are not tensors
  std::int64_t world_size = 1;        // dcp: number of ranks of the output
  std::string layout = {};            // torch_dist: the folder's layout; empty: as its word says
  std::optional<Beside> beside = {};  // see FrameworkOptions
};

// What is to be written: the arguments of plan_output (front/create.h).
struct OutputRequest {
  const std::string& word;
  const Checkpoint& source;
  const Value& content;
  const std::filesystem::path& destination;
  const CreateOptions& options;
};

enum class OutputGroup {
  kFull,      // holds a full state dict, for any program
  kSharded,   // divided over ranks
  kTrainer,   // as a trainer lays it out
  kMegatron,  // of Megatron-Core, whose names and shapes the content must have
  kOwn,       // a checkpoint of the same format is written again for other ranks
};

// A way to write checkpoints.
struct OutputFormat {
  std::string_view word;  // of --to
  OutputGroup group;
  std::unique_ptr<Output> (*plan)(const OutputRequest& request);
  std::vector<std::string_view> suffixes = {};  // of files that are written so if --to is not given
  // The checkpoints of the format that reshard writes so again: those of this layout, "*" those of
  // any.
  std::string_view keeps = {};
};

// A row of the table.  What a format lacks is null or empty.
struct Format {
  std::string_view word;  // CheckpointDescription::format of what is opened; also of the schemas
  // What people call it, by layout, where "{}" stands for the layout; an empty layout is any.
  std::vector<std::pair<std::string_view, std::string_view>> labels = {};
  // Returns whether the folder's own files form such a checkpoint.  Throws: kIo.
  bool (*is_folder)(const Listing& folder) = nullptr;
  std::unique_ptr<StoredCheckpoint> (*open_folder)(const std::filesystem::path& folder,
                                                   const OpenOptions& options) = nullptr;
  bool (*is_file)(const ByteSource& file) = nullptr;
  std::unique_ptr<StoredCheckpoint> (*open_file)(const std::filesystem::path& path) = nullptr;
  std::vector<OutputFormat> outputs = {};
};

// Returns the rows.  Of several formats that a folder or a file may be, the first one counts.
const std::vector<Format>& format_table();

// Return the format by the content of a folder or file, never by its name alone; nullptr: none.
// Throws: kIo.
const Format* format_of(const Listing& folder);
const Format* format_of(const ByteSource& file);

// Returns the way to write of that word; nullptr if there is none.
const OutputFormat* output_format(std::string_view word);
// Returns the words of these groups, one group after the other.
std::vector<std::string> output_words(std::initializer_list<OutputGroup> groups);
// Returns the word by which a checkpoint is written in its own format; empty if there is none.
std::string own_output_word(const CheckpointDescription& description);

// Returns the word by which a trainer's checkpoint for some ranks is written in its own layout for
// others; empty if it becomes a folder of torch.distributed.checkpoint.
std::string kept_output_word(const CheckpointDescription& description);

// Returns what people call the checkpoint.
std::string label_of(const CheckpointDescription& description);

// Returns whether a path has a format; false if the path cannot be examined.
bool opens(const std::filesystem::path& path);

// Returns whether a save into the folder was interrupted: data files without metadata.
bool is_interrupted(const Listing& folder);

// Returns whether a file is or was a checkpoint.  A file that lost its bytes or cannot be opened
// counts, so that its reader reports the error.
bool was_checkpoint_file(const std::filesystem::path& path);

}  // namespace fsdp::formats
