// SPDX-License-Identifier: Apache-2.0
// Folders by torch_checkpointing: `<item>_<rank>.pt` or other files of each rank, and metadata.pkl.
// docs/formats/torch_checkpointing.md.
#pragma once

#include <filesystem>
#include <memory>

#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats::torch_checkpointing {

// Returns whether the folder holds metadata.pkl of this package.
bool is_described_folder(const std::filesystem::path& folder);

// Returns whether the folder holds what the package writes without metadata: files named
// `<item>_<rank>.pt`, one of them with a part of a tensor.
bool is_undescribed_folder(const std::filesystem::path& folder);

// Opens the folder.  Each item is a top-level key.  Items that the metadata do not mention hold no
// tensors for resharding: they are found by the names of their files and read from the lowest rank.
// Findings: kShardMissing (a rank's file is missing), kUnsupported and JSON errors (an item that is
// left out), kExtraFile (a warning: files that are not read), kNoMetadata (a warning: the folder
// still has the name it is written under), and those of open_item.
// Throws: what read_metadata, open_item and open_rank_files throw.
std::unique_ptr<Checkpoint> open_folder(const std::filesystem::path& folder);

}  // namespace fsdp::formats::torch_checkpointing
