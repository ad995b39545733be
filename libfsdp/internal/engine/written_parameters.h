// SPDX-License-Identifier: Apache-2.0
// Values that a forward leaves in its own parameters.
//
// Note [writes in forward]: masked convolutions zero a part of their weight in every forward,
// others hold its norm, by an operator that writes the parameter or by set_data.  Without sharding
// that stays, and so it does here: as soon as the operator has run, in forward or where a backward
// recomputes, each rank copies its rows of the gathered copy to its shard, and whatever gathers
// the unit again gets what was written.  A tensor that was put in a parameter's place is the
// parameter until forward (backward) ends; then its values are taken, and the place is given back.
// Neither counts as a change of the shard: autograd counts at the module's tensor what is written
// to a parameter that a graph has saved, with sharding as without.
//
// Every rank has to write the same, as it computed with all of what it wrote, but keeps its rows.
// So the trailer of a unit's block holds a CRC-32 of what a rank wrote since it was wrapped,
// and ranks that share a copy of the parameters compare it where the unit is gathered next.  On an
// accelerator the trailers are not looked at.
//
// Where the unit computes in another dtype than that of its shards, a copy was written that was
// rounded before.  Zeros are right in any dtype, and what they do not cover keeps its value in the
// shard; anything else would round the shard, and is an error.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "libfsdp/internal/engine/unit.h"

namespace fsdp {

// `whole`, in the dtype of compute, is what `writer` left in the parameter: takes this rank's rows.
// Throws: c10::Error naming the parameter where a shard of another dtype would be rounded.
void take_written(Parameter& parameter, const at::Tensor& whole, int rank,
                  const std::string& writer);

// Whether the tensor in the parameter's place is another one whose values it can take: of its
// shape, dtype and device, and no other parameter.
bool is_replaced(const Parameter& parameter) noexcept;
// Takes its values, and puts the parameter's own tensor back.
// Requires: is_replaced.  Throws: what take_written throws.
void take_replacement(Parameter& parameter, int rank);

// What ranks wrote is not compared with what they wrote before: they failed at different places.
void forget_written(Unit& unit) noexcept;

}  // namespace fsdp
