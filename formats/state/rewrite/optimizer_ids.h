// SPDX-License-Identifier: Apache-2.0
// Restores integer keys in optimizer states read from folders, whose keys are all text.
#pragma once

#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats {

// Returns `content` with integer keys for the parameters that an optimizer numbers: a folder keeps
// the key 0 as "0", and torch.optim.Optimizer.load_state_dict silently ignores state under text
// keys.  An optimizer numbers its parameters if the lists `params` of its groups hold integers;
// keys that are not in these lists stay as they are.  Sources that keep the types of keys
// (torch.save, HDF5) are not changed.  Requires: no placeholders (with_values).
Value with_integer_ids(const Checkpoint& source, const Value& content);

}  // namespace fsdp::formats
