// SPDX-License-Identifier: Apache-2.0
// What nanotron writes into the names and the metadata of a parameter's file.
// Source: nanotron/serialize/utils.py, serialize/metadata.py and parallel/parameters.py.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/state/model/box.h"

namespace fsdp::formats::nanotron {

// The place of the rank that wrote a part of a parameter, and how many there are.
struct Ranks {
  std::int64_t stage = 0, stages = 1;    // of the pipeline
  std::int64_t tensor = 0, tensors = 1;  // of tensor parallelism
  std::int64_t expert = 0, experts = 1;

  // Among those that share the parameter.
  std::int64_t number() const { return expert * tensors + tensor; }
  std::int64_t count() const { return tensors * experts; }
  bool same_job(const Ranks& other) const {
    return stage == other.stage && stages == other.stages && tensors == other.tensors &&
           experts == other.experts;
  }
};

struct ParameterFile {
  std::string name;           // of the parameter: its last step, as parameter_file returns it
  std::string path;           // not set by parameter_file
  std::optional<Ranks> rank;  // nothing: the file has the whole parameter
};

// Reads "model_weight.safetensors" and
// "model_weight_pp-rank-0-of-2_tp-rank-1-of-4_exp-rank-0-of-2.safetensors".  Returns nothing for
// other names.
std::optional<ParameterFile> parameter_file(std::string_view name);

// Returns whether "optimizer_pp-0-of-1_tp-0-of-1_exp-0-of-1.pt" is of the only rank, and not of
// ZeRO, which flattens states and has "_dp-" in the name; "lr_scheduler.pt" is of all ranks.
bool is_of_one_rank(std::string_view name);

struct ShardSlices {
  std::string version;                     // of the format
  std::vector<std::int64_t> shape;         // of the whole parameter
  std::vector<std::pair<Box, Box>> pairs;  // in the file, in the whole parameter
};

// Reads the metadata of a rank's file, whose tensor has the shape `local`.
// Throws: kStMetadata for a missing or unreadable member, slices with steps, or outside of either
// tensor, or of two sizes.
ShardSlices shard_slices(const std::vector<std::pair<std::string, std::string>>& metadata,
                         std::span<const std::int64_t> local);

}  // namespace fsdp::formats::nanotron
