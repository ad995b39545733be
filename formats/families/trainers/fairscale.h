// SPDX-License-Identifier: Apache-2.0
// Shards that each rank of FairScale's FSDP saved with torch.save, beside their metadata: joined
// like in its consolidate_shard_weights.
// Source: fairscale/nn/data_parallel/fully_sharded_data_parallel.py of FairScale 0.4.13;
// docs/formats/per_rank.md.
#pragma once

#include <filesystem>
#include <memory>

#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats::fairscale {

// Returns whether a set of rank files (per_rank.h) in the folder holds FairScale's shard metadata.
bool is_fairscale_folder(const std::filesystem::path& folder);

// Opens the shards.  The index has the parameters by name with their whole shapes, tied ones under
// every name, the lowest rank's buffers, and the other content of that rank's file.  A rank without
// a file leaves holes; findings name parts that are not read: other ranks' experts, parts of
// optimizers.
// Throws: kMetaType, kShape, kDtype, kKey; what read_torch_file throws.
std::unique_ptr<Checkpoint> open_fairscale(const std::filesystem::path& folder);

}  // namespace fsdp::formats::fairscale
