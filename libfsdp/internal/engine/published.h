// SPDX-License-Identifier: Apache-2.0
// Gives reduced gradients to the shards, where an optimizer finds them.
//
// Note [memory of gradients]: a group's gradients lie in one tensor, FlatGroup::grad, which every
// step writes again: its addresses do not change, and a backend may reduce right into it.  If the
// program has kept gradients of an earlier step, they keep that memory, and the group gets new
// memory.
//
// Note [offloaded gradients]: shards in host memory have their gradients there.  They are copied to
// pinned memory while the device goes on, and nobody may read them before the host has waited for
// the copies, once in a backward.  Gradients that are added to existing ones arrive beside them,
// and are added after that wait.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "libfsdp/internal/engine/context.h"
#include "libfsdp/internal/units/unit.h"

namespace fsdp::internal {

// Gradients that are in pinned memory after the host's next wait for kReduce.
struct Arriving {
  FlatGroup* group = nullptr;
  at::Tensor gradients;  // [grad_numel], to be added to the present ones
};

// Returns whether the group has gradients that reduced ones are added to.
bool accumulates(const FlatGroup& group);

// Returns FlatGroup::grad, in new memory if somebody else holds the old memory.
at::Tensor& memory_of_gradients(const EngineContext& context, FlatGroup& group);

// Makes the content of FlatGroup::grad the gradients of the shards.
void show_grad(FlatGroup& group);

// Adds `gradients` [grad_numel], of the shards' device and of any dtype, to the gradients of
// the shards.
void add_to_gradients(const EngineContext& context, FlatGroup& group, const at::Tensor& gradients);

// Publishes `reduced` [grad_numel], on the device, of any dtype.  Queues work on kReduce.
void publish(const EngineContext& context, FlatGroup& group, const at::Tensor& reduced,
             std::vector<Arriving>& arriving);

}  // namespace fsdp::internal
