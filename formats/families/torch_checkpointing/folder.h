// SPDX-License-Identifier: Apache-2.0
// Folders by torch_checkpointing: `<item>_<rank>.pt` or other files of each rank, and metadata.pkl.
#pragma once

#include <filesystem>
#include <memory>

#include "formats/bytes/files/listing.h"
#include "formats/families/trainers/trainers.h"

namespace fsdp::formats::torch_checkpointing {

// Returns whether the folder holds metadata.pkl of this package.
bool is_described_folder(const Listing& folder);
// Returns whether the folder holds what the package writes without metadata: files named
// `<item>_<rank>.pt`, one of them with a part of a tensor.
bool is_undescribed_folder(const Listing& folder);
// Opens the folder.  Each item is a top-level key.  Items that the metadata do not mention hold no
// tensors for resharding: they are found by the names of their files and read from the lowest rank.
// Findings: kShardMissing (a rank's file is missing), kUnsupported and JSON errors (an item that is
// left out), kExtraFile (a warning: files that are not read), kNoMetadata (a warning: the folder
// still has the name it is written under), and those of open_item.
// Throws: what read_metadata, open_item and open_rank_files throw.
std::unique_ptr<StoredCheckpoint> open_folder(const std::filesystem::path& folder);

// Each top-level key is an item; a state dict of tensors alone becomes the item `model`.  Items
// with tensors are cut as FSDP would cut them over the ranks, and the metadata record the cuts.
// Each rank's file also has everything else.  The parts are plain tensors, which the package loads
// only through a resharder.
// Lifetime: the source outlives the output.
// Throws: kUnsupported (the content is not a mapping, a key of it cannot be part of a file's name
// or a path be said in metadata), kUsage (world_size); what ShardingRule and write_pickle throw.
std::unique_ptr<Output> plan_output(const Checkpoint& source, const Value& content,
                                    const std::filesystem::path& destination,
                                    const FrameworkOptions& options);

}  // namespace fsdp::formats::torch_checkpointing
