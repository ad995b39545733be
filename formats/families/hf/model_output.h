// SPDX-License-Identifier: Apache-2.0
// Writes the folder of a Hugging Face model: weights as safetensors, and the files beside them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "formats/families/hf/companions.h"
#include "formats/state/content/output.h"

namespace fsdp::formats::hf {

// Plans model.safetensors, or files of at most `max_shard_bytes` with model.safetensors.index.json
// if one file would be larger; then the companions.  A head is written even if it is tied to the
// embedding, because a model that does not tie them needs it.  `weights`: the name of a single
// file.  `content` must have tensors only.
// Lifetime: the source outlives the output.
// Throws: what safetensors::Writer throws.
std::unique_ptr<Output> plan_model_output(const Checkpoint& source, const Value& content,
                                          const std::filesystem::path& destination,
                                          const OutputOptions& options,
                                          std::uint64_t max_shard_bytes,
                                          std::vector<Companion> companions,
                                          const std::string& weights = "model.safetensors");

}  // namespace fsdp::formats::hf
