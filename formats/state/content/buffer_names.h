// SPDX-License-Identifier: Apache-2.0
// Tells the buffers of a model from its parameters where a state dict does not say which is which.
#pragma once

#include <string_view>

#include "formats/bytes/base/dtype.h"

namespace fsdp::formats {

// Returns whether name and dtype say that a tensor of a model is a buffer: the dtype cannot have a
// gradient, or the last part of the name is one that common modules give to a buffer.
bool is_buffer(std::string_view name, DType dtype);

}  // namespace fsdp::formats
