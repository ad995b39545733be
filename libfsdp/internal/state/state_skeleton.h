// SPDX-License-Identifier: Apache-2.0
// Sends state values to other ranks: a text without tensor data, the skeleton, and the data after
// it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "libfsdp/process_group.h"
#include "libfsdp/state_value.h"

namespace fsdp::internal {

// Throws: c10::Error for tensors that are sharded, sparse, quantized or on the meta device.
std::string skeleton_text(const StateValue& value);
// Returns the value with its tensors on the meta device; those that travel as text are on the CPU
// and whole.
// Requires: text of skeleton_text.
StateValue skeleton_of(std::string_view text);

// Calls f for every tensor in the value, in its order; of a sharded one, for this rank's rows.
void each_tensor(StateValue& value, const std::function<void(at::Tensor&)>& f);

// Returns whether the text holds the tensor's value.
bool travels_as_text(const at::Tensor& tensor);

// Collective.  Sends the value's skeleton and then tensor after tensor; they
// arrive on the CPU.  The values that other ranks give are not looked at.
// Throws: c10::Error as skeleton_text does, on every rank.
StateValue broadcast_value(const std::shared_ptr<ProcessGroup>& group, const StateValue& value,
                           int src, const std::string& what);

}  // namespace fsdp::internal
