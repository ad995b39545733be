// SPDX-License-Identifier: Apache-2.0
// Follows what the user freezes and thaws after a module was wrapped.
//
// Note [freezing]: a parameter has two tensors that a user sees, the module's and its shard, and
// `requires_grad` of both means the same.  Parameter::trainable is the value last in force: a
// tensor that differs from it was set since then, and both tensors get the new value.  This is
// checked when a forward begins and ends, and when a backward begins, so that a step sees what a
// plain module would.  Gradients that a parameter has when it is frozen stay, as those of a plain
// module do.
#pragma once

#include "libfsdp/internal/units/unit.h"

namespace fsdp::internal {

// Throws: c10::Error if the optimizer gets flat tensors, and one holds parameters that are
// trainable beside frozen ones.
void check_flat(const Unit& unit);

// Returns whether the user has set requires_grad of any of its tensors.
bool was_set(const Unit& unit);
// Takes over what was set, and lays out the gradients anew.
// Throws: c10::Error if a flat tensor would hold both kinds, or a parameter is frozen whose
// gradient is not reduced yet; nothing is changed then.
void follow_requires_grad(Unit& unit);

}  // namespace fsdp::internal
