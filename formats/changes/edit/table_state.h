// SPDX-License-Identifier: Apache-2.0
// The tensors that optimizers keep for given parameters of a model.
#pragma once

#include <cstddef>
#include <vector>

#include "formats/containers/pickle/value.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/content/state_parts.h"
#include "formats/state/content/state_tree.h"

namespace fsdp::formats {

// Returns the optimizers among the parts of a state dict.
std::vector<StatePart> optimizer_parts(const Value& content);
// Returns whether the leaf lies in one of the parts.
bool lies_in(const Leaf& leaf, const std::vector<StatePart>& parts);

struct ParameterTensor {
  Leaf leaf;              // of the content
  std::size_t parameter;  // position in the list of parameters
};

// Returns the state tensors of `parameters`, which are leaves of a model in `content`: by name, by
// id or flattened.  `leaves`: all leaves of the content.
// Throws: kKey if an optimizer has a parameter that the model lacks, or ids that nothing names;
// kShape if a state does not fit its parameter; the errors of read_optimizer.
std::vector<ParameterTensor> states_of(const Checkpoint& checkpoint, const Value& content,
                                       const std::vector<Leaf>& leaves,
                                       const std::vector<Leaf>& parameters);

}  // namespace fsdp::formats
