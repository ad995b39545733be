// SPDX-License-Identifier: Apache-2.0
// Takes values that a forward writes to its own parameters.
//
// Note [writes in forward]: masked convolutions zero a part of their weight in every forward, and
// other layers rescale theirs, by an operator that writes the parameter or by set_data.  Without
// sharding such writes persist, and so they do here.  As soon as the operator has run, in forward
// or while a backward recomputes, each rank copies its rows of the gathered copy to its shard, and
// later gathers of the unit see the written values.  A tensor put in a parameter's place is the
// parameter until forward (backward) ends; then its values are taken, and the own tensor returns.
// Neither counts as a change of the shard: autograd itself counts writes to a parameter that a
// graph has saved, at the module's tensor, with sharding as without.
//
// Every rank must write the same values, because it computed with all of them but keeps only its
// rows.  So the trailer of a unit's block holds a checksum of all that a rank wrote since it was
// wrapped (a CRC-32; on an accelerator one that the device computes), and the ranks of a replica
// compare it at the unit's next gather.  Writes to offloaded parameters are not compared.
//
// If the unit computes in another dtype than that of its shards, the written copy was rounded
// before.  Zeros are exact in any dtype, and elements that were not zeroed keep their value in the
// shard.  Any other write would round the shard, and is an error.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "libfsdp/internal/units/unit.h"

namespace fsdp::internal {

// Copies this rank's rows of `whole`, which `writer` left in the parameter, to the shard.  `whole`
// is in the dtype of compute.
// Throws: c10::Error naming the parameter if a shard of another dtype would be rounded.
void take_written(Parameter& parameter, const at::Tensor& whole, const std::string& writer);

// Returns whether the tensor in the parameter's place is another one whose values can be taken: of
// its shape, dtype and device, and not another parameter.
bool is_replaced(const Parameter& parameter) noexcept;
// Takes the replacement's values, and restores the parameter's own tensor.
// Requires: is_replaced.  Throws: what take_written throws.
void take_replacement(Parameter& parameter);

// Stops comparing what ranks wrote before, because they failed at different places.
void forget_written(Unit& unit) noexcept;

}  // namespace fsdp::internal
