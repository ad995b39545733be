// SPDX-License-Identifier: Apache-2.0
// A state dict as text, but for what is in its tensors: for ranks that are about to be sent those.
#pragma once

#include <string>
#include <string_view>

#include "libfsdp/state_value.h"

namespace fsdp {

// Throws: c10::Error for sharded tensors.
std::string skeleton_text(const StateDict& dict);
// Tensors are on the meta device, but for those of no dimension: they are here with their value,
// where double holds it.
// Requires: what skeleton_text gave.
StateDict skeleton_of(std::string_view text);

// Whether the text holds the tensor's value.
bool travels_as_text(const at::Tensor& tensor);

}  // namespace fsdp
