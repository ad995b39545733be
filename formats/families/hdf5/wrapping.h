// SPDX-License-Identifier: Apache-2.0
// Wraps references to tensors as a checkpoint's own tree wraps the tensors.
#pragma once

#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats::hdf5 {

// Returns `root` with each reference to a tensor (content.h) wrapped as that tensor is in the
// checkpoint's own tree: in a Parameter, a Buffer, attributes.  A reference that occurs twice stays
// one value.
Value with_wrappers(const Checkpoint& checkpoint, const Value& root);

}  // namespace fsdp::formats::hdf5
