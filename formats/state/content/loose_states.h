// SPDX-License-Identifier: Apache-2.0
// Finds optimizer states among the tensors of a model. safetensors has only keys:
// "optim.state.0.exp_avg" is a tensor like any other there, and the groups that say which parameter
// it belongs to were left out.
#pragma once

#include <optional>
#include <string>

#include "formats/containers/pickle/value.h"
#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats {

// Returns the key of a tensor that is the state of a parameter and lies outside the optimizers that
// can be read; nothing if there is none.  In such a key, the part `state` is followed by a number,
// or by the name of another tensor and that of a state, in either order.
std::optional<std::string> loose_state(const Value& content);

// Throws: kUnsupported naming such a tensor, with a hint what to leave out.
// `source`: the checkpoint of the content, for messages.
void refuse_loose_states(const Checkpoint& source, const Value& content);

}  // namespace fsdp::formats
