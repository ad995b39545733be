// SPDX-License-Identifier: Apache-2.0
// Finds states of an optimizer that stand among tensors of a model: safetensors has keys alone, so
// "optim.state.0.exp_avg" is a tensor like any other there, and the groups that say what it is
// state of were left out.
#pragma once

#include <optional>
#include <string>

#include "formats/containers/pickle/value.h"
#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats {

// Returns the key of a tensor that is state of a parameter, outside the optimizers that can be
// read: its key has a part `state`, and behind that a number or the name of another tensor with the
// name of a state.  Nothing if there is none.
std::optional<std::string> loose_state(const Value& content);

// Throws: kUnsupported naming such a tensor, with what to leave out.
// `source`: what the content is of, for messages.
void refuse_loose_states(const Checkpoint& source, const Value& content);

}  // namespace fsdp::formats
