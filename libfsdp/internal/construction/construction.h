// SPDX-License-Identifier: Apache-2.0
// Makes the shards of a module, one module of the tree after the other: each is initialized, moved
// to its device, given rank 0's values and cut before the next one, so that a rank never holds more
// than its shards and some whole parameters.
#pragma once

#include <vector>

#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include "libfsdp/internal/units/module_units.h"
#include "libfsdp/internal/units/sharding.h"
#include "libfsdp/internal/units/unit.h"
#include "libfsdp/options.h"

namespace fsdp::internal {

// Collective.  Leaves the tensors of `units` in the module without memory, and its buffers on the
// device.  `units`: new ones from units_of(), the same on every rank.
//
// A parameter is cut when all modules that register it are done.  If anything else refers to it
// (`head->weight = embedding->weight` leaves it in head, but not in head's registry), it is cut
// when all modules are done, because head may initialize it.
// Ranks that take the values of rank 0 only allocate memory for their modules, and draw no random
// numbers, unless there is a param_init_fn.
// Throws: c10::Error on every rank, naming the ranks that failed: what materialize() throws; for an
// initialization that writes a parameter of a module that was cut before, changes the shape, dtype
// or requires_grad of a parameter, or registers one.
void construct(torch::nn::Module& module, const std::vector<Unit*>& units,
               const FsdpOptions& options, const Ignored& ignored, const Mesh& mesh,
               c10::Device device);

}  // namespace fsdp::internal
