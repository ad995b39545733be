// SPDX-License-Identifier: Apache-2.0
// Copies full gradients into the buffer that a reduction sends, and drops them.
//
// On the CPU each gradient is copied when autograd has made it, while it is in the cache.  On an
// accelerator the gradients of a unit are copied together, by one operator on the caller's stream,
// which owns their memory and may reuse it at once.
#pragma once

#include <cstdint>

#include "libfsdp/internal/engine/context.h"
#include "libfsdp/internal/units/unit.h"

namespace fsdp::internal {

// Returns the elements of a group's block for each rank.  If ranks exchange blocks, or are on the
// CPU, a block ends with the unit's id, by which the receiver checks that all reduce the same unit.
std::int64_t block_numel(const EngineContext& context, const FlatGroup& group);
// Returns the elements of a block that are not gradients.
std::int64_t trailer_numel(const EngineContext& context, const FlatGroup& group);

// Stages one gradient, which autograd has just made.  Adds the parameter's kept gradient (see
// gradients.h), which stays until the reduction is done.
// Requires: the CPU.
// Throws: c10::Error for a sparse gradient.
void stage_gradient(const EngineContext& context, Parameter& parameter);

// Stages all gradients of the unit that are not staged yet, and those that were kept.
// Throws: c10::Error for a sparse gradient.
void stage_gradients(const EngineContext& context, Unit& unit);

// Completes the blocks before they are sent: zeros for parameters without a gradient, and the id.
void complete_staging(const EngineContext& context, const Unit& unit, FlatGroup& group);

}  // namespace fsdp::internal
