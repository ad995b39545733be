// SPDX-License-Identifier: Apache-2.0
// Where the gradients of a sharded module are, and what stands in for them elsewhere.
//
// Note [stand-ins]: after a backward the gradient of a parameter is where its optimizer is: on its
// shard (or on the flat tensor).  After one without synchronization it is whole, in
// Parameter::kept.  Code for plain modules looks elsewhere, into .grad of the module's own
// parameters, or of shards whose gradient is not reduced yet, and would find nothing: zero_grad()
// would clear nothing, an optimizer would step nothing, a norm would be zero.  So that nothing is
// silent, .grad holds a stand-in there: a tensor of the right shape without memory, of which
//   detach(), detach_()   give the stand-in
//   zero_()               makes the gradient zero where it is
//   losing the last one   (zero_grad() does that) drops the gradient where it is
//   everything else       throws what to do instead.
//
//                            shard.grad               full.grad
//   no gradient              none                     none
//   reduced                  the gradient             stand-in
//   kept, not reduced        stand-in (the reduced    stand-in
//                            one is put aside)
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "libfsdp/internal/engine/unit.h"

namespace fsdp {

struct StandIn;

// Null for any other tensor.  Thread-safe.
StandIn* stand_in_of(const at::Tensor& tensor) noexcept;
// What is to be done instead of `operation`, a verb with its subject: "'aten::norm' reads".
std::string refusal(const StandIn& stand_in, const std::string& operation);
// Makes the gradient it stands for zero.
void make_zero(const StandIn& stand_in);

// Puts stand-ins where Note [stand-ins] wants them, and takes away others.
void show_gradients(Unit& unit);
// Autograd is about to add to the gradient of the module's tensor.
void hide_from_module(Parameter& parameter) noexcept;
// Moves the gradient that autograd has made to Parameter::kept.
// Throws: c10::Error for a sparse gradient.
void keep_gradient(Parameter& parameter);
// The kept gradients of a group were reduced, or will not be: reduced ones are back in their place.
void take_back_reduced(FlatGroup& group, bool flat) noexcept;
// All gradients of a unit, wherever they are, as zero_grad().
void zero_gradients(Unit& unit, bool set_to_none);
// A kept gradient: the first parameter's name; null where there is none.
const Parameter* first_kept(const Unit& unit) noexcept;
// Stand-ins outlive their unit without effect.
void release_stand_ins(Unit& unit) noexcept;

// Throws: c10::Error naming the parameter where its gradient is not dense.
void check_dense(const Parameter& parameter, const at::Tensor& gradient);

}  // namespace fsdp
