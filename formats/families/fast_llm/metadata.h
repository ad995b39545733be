// SPDX-License-Identifier: Apache-2.0
// metadata.yaml of Fast-LLM, as far as reading its checkpoints needs it.
// Source: fast_llm/engine/multi_stage/config.py (CheckpointMetadata) and engine/checkpoint/
// state_dict.py of Fast-LLM 0.4.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/families/safetensors/index.h"

namespace fsdp::formats::fast_llm {

struct Metadata {
  std::string version;               // of Fast-LLM, "0.4.0"
  std::string format;                // "fast_llm", "distributed"
  std::string model;                 // "gpt"
  std::vector<std::string> shards;   // "weights", "exp_avgs", ...
  std::optional<std::int64_t> step;  // of the optimizer, if a trainer saved it
  safetensors::FileIndex index;      // of "<name>/<shard>"; none in the format `distributed`
};

// Reads the text, in the style that yaml.safe_dump writes: block mappings, a line for each entry,
// deeper lines indented by two blanks.  Entries that Metadata has no place for are passed over.
// Throws: kIndex naming the line: it is cut off, an entry is missing, named twice, in another
// style, or names a file other than model_<n>.safetensors and model_<stage>_<n>.safetensors.
Metadata parse_metadata(std::string_view text);

// Returns whether these are names of files that Fast-LLM writes for all ranks, and for each.
bool is_model_file(std::string_view name);
bool is_rank_file(std::string_view name);

}  // namespace fsdp::formats::fast_llm
