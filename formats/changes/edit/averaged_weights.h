// SPDX-License-Identifier: Apache-2.0
// Puts averages of a model's weights in the place of the weights.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/changes/edit/average_sources.h"
#include "formats/containers/pickle/value.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/rewrite/parameter_order.h"

namespace fsdp::formats {

struct AveragedWeights {
  // Holds averages that are computed; nullptr: the content refers to the checkpoint it came from.
  std::shared_ptr<const Checkpoint> checkpoint;
  Value content;
  std::string place;  // of the averages
  std::string what;
  std::string model;              // the model that got them
  std::uint64_t taken = 0;        // parameters
  std::uint64_t computed = 0;     // of these, by a sum
  std::vector<std::string> kept;  // buffers, and other parts of the model, without an average
  std::string order;              // where names for ids come from; empty: names are stored
  bool listed = false;            // that order is an assumption: see AverageSource
};

// Returns the content in which each parameter of the only model that does not hold averages is the
// average of its name; all else stays, the averages too.  Averages keep their dtypes.
// Computed averages are summed in float64 and rounded once.
// `given`: the order of the parameters, if not that of the model.
// `content` has no placeholders.  Lifetime: `source` outlives the result.
// Throws: kKey if there are no averages, a parameter has none, or there is one of an unknown name;
// kShape and kType if one is not like its parameter; kUnsupported if there are several models or
// several averages; what names_of_ids throws.
AveragedWeights averaged_weights(const Checkpoint& source, const Value& content,
                                 const std::optional<ParameterOrder>& given = std::nullopt);

// Returns the tensors of the model `averages` and, behind them, the buffers of `model` that it
// lacks, and what it has no averages of (FoundModel::part), whose names go to `kept`; the tensors
// alone if the two share no name.  Throws: kKey if it lacks a parameter.
Value with_buffers_of(const hf::FoundModel& model, const hf::FoundModel& averages,
                      std::vector<std::string>& kept);

}  // namespace fsdp::formats
