// SPDX-License-Identifier: Apache-2.0
// Encodes a state value as text, without tensor data, for ranks that receive the data separately.
#pragma once

#include <string>
#include <string_view>

#include "libfsdp/state_value.h"

namespace fsdp::internal {

// Throws: c10::Error for tensors that are sharded, sparse, quantized or on the meta device.
std::string skeleton_text(const StateValue& value);
// Returns the value with its tensors on the meta device; those that travel as text are on the CPU
// and whole.
// Requires: text of skeleton_text.
StateValue skeleton_of(std::string_view text);

// Returns whether the text holds the tensor's value.
bool travels_as_text(const at::Tensor& tensor);

}  // namespace fsdp::internal
