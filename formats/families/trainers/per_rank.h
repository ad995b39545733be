// SPDX-License-Identifier: Apache-2.0
// Files that each rank saved on its own with torch.save, DTensors and ShardedTensors inside: read
// together as one checkpoint.  docs/formats/per_rank.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/bytes/files/listing.h"
#include "formats/families/torch/stream.h"
#include "formats/families/trainers/sharded_value.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/content/state_tree.h"

namespace fsdp::formats {

// Files whose names differ only in the rank.
struct RankFiles {
  std::string name;                                         // before the rank: "model_world_size_8"
  std::vector<std::pair<std::int64_t, std::string>> files;  // by rank
};

// Returns the sets of such names: `<name>rank<r>.pt` and `<name>shard<r>.pt` (or .pth, .bin, .ckpt,
// .torch; `_` or `-` between) and `checkpoint_<r>.pt`.
std::vector<RankFiles> rank_files(const std::vector<std::string>& names);

// Returns the sets of a folder that hold DTensors or ShardedTensors; `others` gets the other sets.
std::vector<RankFiles> sharded_sets(const Listing& folder,
                                    std::vector<RankFiles>* others = nullptr);

// Returns whether `path` is a torch.save file that holds a DTensor or a ShardedTensor.
bool holds_sharded_tensors(const std::filesystem::path& path);

// Returns the parts of a tensor that a rank holds; nothing if the leaf of its file is whole.
using PartFinder = std::function<std::optional<ShardedValue>(std::int64_t rank, const Leaf& leaf)>;

// Returns whether two values of torch.save files are the same, storages by their checksums; false
// if these were not saved.
bool saved_alike(const TorchFile& a, const Value& of_a, const TorchFile& b, const Value& of_b);

// Opens the files of a set.  Tensors have their whole shape; a rank without a file leaves holes.
// Values that are not sharded come from the lowest rank.  Flat parameters of FSDP's
// LOCAL_STATE_DICT are listed, but cannot be copied.
// Throws: what read_torch_file and sharded_value throw, beginning with the path; kDtype, kShape,
// kKey if ranks contradict each other.
// `find`, if set, tells the places, which another file describes; the caller must report missing
// ranks.
std::unique_ptr<StoredCheckpoint> open_rank_files(const std::filesystem::path& folder,
                                                  const RankFiles& set,
                                                  const PartFinder& find = {});

// Opens a torch.save file.  A file that a rank saved on its own shows which part of each tensor it
// holds: the other parts are holes.
std::unique_ptr<StoredCheckpoint> open_saved_file(const std::filesystem::path& path);

// Opens the sets of a folder, each under its name if there are several.
// Requires: at least one holds sharded tensors.
std::unique_ptr<StoredCheckpoint> open_rank_folder(const std::filesystem::path& folder);
// Returns whether a file of the folder is one of a set that holds sharded tensors.
bool is_rank_folder(const Listing& folder);

}  // namespace fsdp::formats
