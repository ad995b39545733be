// SPDX-License-Identifier: Apache-2.0
// A checkpoint of Fast-LLM: metadata.yaml beside model_<n>.safetensors, whose tensors are called
// <name>/<shard>: the weights of a parameter, or a state of its optimizer.
// Source: fast_llm/engine/checkpoint of Fast-LLM 0.4.
#pragma once

#include <filesystem>
#include <memory>

#include "formats/bytes/files/listing.h"
#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats::fast_llm {

// Returns whether the folder holds metadata.yaml and such a file, or one of a rank.
bool is_fast_llm_folder(const Listing& folder);
// Opens the weights as `model`, the states as `optimizer`, by name.  A finding names files that the
// metadata does not.
// Throws: kUnsupported for the format `distributed`, with the command that converts it; kIndex,
// kShardMissing, kKey, kShape; what the readers of the files throw.
std::unique_ptr<StoredCheckpoint> open_fast_llm(const std::filesystem::path& folder);

}  // namespace fsdp::formats::fast_llm
