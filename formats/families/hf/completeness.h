// SPDX-License-Identifier: Apache-2.0
// Finds the tensors that a model lacks, judged by its own layers and its config.json, without the
// code of the model.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "formats/bytes/base/json.h"

namespace fsdp::formats::hf {

// Returns names that the model lacks: about 1000 at most, and `most` of each layer or expert.
// Expects:
// - layers and experts that are numbered from 0 without gaps; as many as num_hidden_layers and the
//   number of experts say, if `config` has them;
// - a layer with all names of another layer, if each of its own names is among them;
// - lm_head.weight, if `config` says that it is not tied.
// A sequence of single modules, such as 0.weight and 2.weight, may have modules without parameters
// between them, and lacks nothing.
std::vector<std::string> missing_names(std::span<const std::string> names, const Json* config,
                                       std::size_t most = 4);

// Returns how the shape of the embedding or head contradicts `config`; empty: it does not.
std::string embedding_contradiction(
    std::span<const std::pair<std::string, std::vector<std::int64_t>>> shapes, const Json& config);

// Returns whether `name` is an embedding that a head may be tied to.
bool is_embedding(const std::string& name);
inline constexpr const char* kHead = "lm_head.weight";

}  // namespace fsdp::formats::hf
