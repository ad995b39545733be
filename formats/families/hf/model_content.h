// SPDX-License-Identifier: Apache-2.0
// The model of a checkpoint as the files of a Hugging Face model hold it: tensors by their names,
// and nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/containers/pickle/value.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/content/state_parts.h"

namespace fsdp::formats::hf {

struct FoundModel {
  std::string place;         // its key in the checkpoint; empty: the top level
  Value tensors;             // a mapping of names to tensors
  std::uint64_t values = 0;  // the number of its other members, which are left out
  // Averages of the tensors below this name alone; empty: of any.
  std::optional<std::string> part = std::nullopt;
};

// Returns the model of `content` at `place`, or the only model if `place` is empty.
// Throws: kKey if there is none; kUnsupported if there are several, naming them, or if optimizer
// states stand among the tensors (loose_states.h).
FoundModel find_model(const Checkpoint& source, const Value& content, const std::string& place);

// Returns all models of `content`; empty: there is none.  `apart`: models beside each other in one
// flat state dict (flat_models.h) are returned one by one.
std::vector<FoundModel> find_models(const Value& content, bool apart = true);

std::vector<std::string> names_of(const Value& tensors);
// Returns the tensors under the names that `rename` gives them.
Value renamed_tensors(const Value& tensors,
                      const std::function<std::string(const std::string&)>& rename);

using NamedShapes = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;
NamedShapes shapes_of(const Value& tensors);

// Returns `tensors` without lm_head.weight if an embedding is among them, which the head is tied
// to.
// Throws: kMismatch if their elements differ; what reading throws.
Value without_tied_head(const Checkpoint& source, const Value& tensors);

// Returns the name of a tensor that holds FP8 scales or MXFP4 blocks, as published models name
// them; empty: there is none.
std::string quantized_name(const Value& tensors);

// Returns the floating dtype with the most bytes; a dtype of 8 bits only if there is no other,
// because weights are stored in 8 bits but not computed in them.  kFloat32 if there is none.
DType main_dtype(const Value& tensors);

}  // namespace fsdp::formats::hf
