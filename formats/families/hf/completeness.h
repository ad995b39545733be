// SPDX-License-Identifier: Apache-2.0
// What a model lacks, judged by its own layers and by its config.json; the code of the model is not
// needed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "formats/bytes/base/json.h"

namespace fsdp::formats::hf {

// Returns names that the model lacks: some hundreds at most, and of each layer or expert `most`:
// - numbers of layers, and of experts, begin with 0 and leave none out; there are as many as
//   num_hidden_layers and the number of experts say, if `config` has them.
// - a layer has no fewer names than another one whose names contain all of its own;
// - lm_head.weight is there where `config` says that it is not tied.
// A sequence of single modules, such as 0.weight and 2.weight, may have others without parameters
// between them, and lacks nothing.
std::vector<std::string> missing_names(std::span<const std::string> names, const Json* config,
                                       std::size_t most = 4);

// Returns what contradicts `config` in the embedding's shape; empty: nothing does.
std::string embedding_contradiction(
    std::span<const std::pair<std::string, std::vector<std::int64_t>>> shapes, const Json& config);

// Returns whether it is the name of the embedding that a head may be tied to.
bool is_embedding(const std::string& name);
inline constexpr const char* kHead = "lm_head.weight";

}  // namespace fsdp::formats::hf
