// SPDX-License-Identifier: Apache-2.0
// Manages the gradients of a sharded module and their stand-ins elsewhere.
//
// Note [stand-ins]: after a backward the gradient of a parameter is where its optimizer is: on its
// shard (or on the flat tensor).  After a backward without synchronization it is whole, in
// Parameter::kept.  Code for plain modules looks into .grad of the module's own parameters, or of
// shards whose gradient is not reduced yet, and would find nothing there: zero_grad() would clear
// nothing, an optimizer would step nothing, a norm would be zero.  To prevent silent errors, .grad
// holds a stand-in there: a tensor of the right shape without memory, of which
//   detach(), detach_()   give the stand-in
//   zero_()               makes the gradient zero where it is
//   losing the last one   (zero_grad() does that) drops the gradient where it is
// everything else       throws an error with advice.
//
//                            shard.grad               full.grad
//   no gradient              none                     none
//   reduced                  the gradient             stand-in
//   kept, not reduced        stand-in (the reduced    stand-in
//                            one is put aside)
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "libfsdp/internal/units/unit.h"

namespace fsdp::internal {

struct StandIn;

// Returns null for any other tensor.  Thread-safe.
StandIn* stand_in_of(const at::Tensor& tensor) noexcept;
// Says what to do instead of `operation`, a verb with its subject: "'aten::norm' reads".
std::string refusal(const StandIn& stand_in, const std::string& operation);
// Makes the gradient that it stands for zero.
void make_zero(const StandIn& stand_in);

// Puts stand-ins where Note [stand-ins] requires them, and removes others.
void show_gradients(Unit& unit);
// Call before autograd adds to the gradient of the module's tensor.
void hide_from_module(Parameter& parameter) noexcept;
// Moves the gradient that autograd has made to Parameter::kept.
// Throws: c10::Error for a sparse gradient.
void keep_gradient(Parameter& parameter);
// Call once the kept gradients of a group were reduced, or will not be: restores reduced ones.
void take_back_reduced(FlatGroup& group) noexcept;
// Zeroes or drops all gradients of a unit, wherever they are, like zero_grad().
void zero_gradients(Unit& unit, bool set_to_none);
// Throws: c10::Error naming a parameter whose gradient is kept without being reduced.
void require_reduced(const std::vector<Unit*>& units, const char* what);
// Detaches the unit's stand-ins, which may outlive it without effect.
void release_stand_ins(Unit& unit) noexcept;

// Throws: c10::Error naming the parameter if its gradient is not dense.
void check_dense(const Parameter& parameter, const at::Tensor& gradient);

}  // namespace fsdp::internal
