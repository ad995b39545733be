// SPDX-License-Identifier: Apache-2.0
// Restores optimizer states by number from folders, whose keys are all text.
#pragma once

#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats {

// Returns `content` with integer keys for the parameters that an optimizer numbers: a folder keeps
// the key 0 as "0", and torch.optim.Optimizer.load_state_dict silently ignores state under text
// keys.  An optimizer numbers its parameters if the lists `params` of its groups hold integers;
// keys that they do not list stay as they are, and so does a source that keeps types of keys itself
// (torch.save, HDF5).  Requires: no placeholders (with_values).
Value with_integer_ids(const Checkpoint& source, const Value& content);

}  // namespace fsdp::formats
