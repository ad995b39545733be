// SPDX-License-Identifier: Apache-2.0
// Parameters and tensors with attributes around tensors of another place.
#pragma once

#include "formats/checkpoint/checkpoint.h"

namespace fsdp::formats::hdf5 {

// `root` with each reference to a tensor (content.h) in what the checkpoint's own tree has around
// that tensor: a Parameter, a Buffer, attributes.  One reference that occurs twice stays one value.
Value with_wrappers(const Checkpoint& checkpoint, const Value& root);

}  // namespace fsdp::formats::hdf5
