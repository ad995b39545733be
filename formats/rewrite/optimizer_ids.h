// SPDX-License-Identifier: Apache-2.0
// Optimizer states by number, taken out of folders, whose keys are all text.
#pragma once

#include "formats/checkpoint/checkpoint.h"

namespace fsdp::formats {

// `content` with the parameters that an optimizer numbers under integers again: a folder keeps the
// key 0 as "0", and torch.optim.Optimizer.load_state_dict takes nothing of a state under text,
// without a word.  An optimizer numbers its parameters where the lists `params` of its groups hold
// integers; what they do not list stays as it is, and so does all of a source that keeps keys of
// its own (torch.save, HDF5). Requires: no placeholders (with_values).
Value with_integer_ids(const Checkpoint& source, const Value& content);

}  // namespace fsdp::formats
