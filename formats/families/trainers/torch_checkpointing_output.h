// SPDX-License-Identifier: Apache-2.0
// Writes folders for torch_checkpointing: `<item>_<rank>.pt` and metadata.pkl.
// docs/formats/torch_checkpointing.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "formats/state/content/output.h"

namespace fsdp::formats::torch_checkpointing {

// Each top-level key is an item; a state dict of tensors alone becomes the item `model`.  Items
// with tensors are cut as FSDP would cut them over `world_size` ranks, and the metadata record the
// cuts.  Each rank's file also has everything else.  The parts are plain tensors, which the package
// loads only through a resharder.
// Lifetime: the source outlives the output.
// Throws: kUnsupported (the content is not a mapping, a key of it cannot be part of a file's name
// or a path be said in metadata), kUsage (world_size); what ShardingRule and write_pickle throw.
std::unique_ptr<Output> plan_output(const Checkpoint& source, const Value& content,
                                    const std::filesystem::path& destination,
                                    const OutputOptions& options, std::int64_t world_size);

}  // namespace fsdp::formats::torch_checkpointing
