// SPDX-License-Identifier: Apache-2.0
// Encodes a state dict as text, without tensor data, for ranks that receive the data separately.
#pragma once

#include <string>
#include <string_view>

#include "libfsdp/state_value.h"

namespace fsdp {

// Throws: c10::Error for sharded tensors.
std::string skeleton_text(const StateValue& value);
// Returns the dict with tensors on the meta device, except those without dimensions: they have
// their value if a double can hold it.
// Requires: text of skeleton_text.
StateValue skeleton_of(std::string_view text);

// Returns whether the text holds the tensor's value.
bool travels_as_text(const at::Tensor& tensor);

}  // namespace fsdp
