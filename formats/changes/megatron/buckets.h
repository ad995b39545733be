// SPDX-License-Identifier: Apache-2.0
// States of Megatron-Core's distributed optimizer in buckets (dp_reshardable), by parameters.
#pragma once

#include <string>
#include <vector>

#include "formats/changes/arrays/computed_tensors.h"
#include "formats/changes/megatron/module_state.h"
#include "formats/containers/pickle/value.h"

namespace fsdp::formats::megatron {

// Adds the optimizer of these entries, all of the content's for which is_bucket is true, to
// `state`, whose model is complete: states in float32 by the names of parameters, and the options
// of groups. Of a state that several ranks of tensor parallelism have, that of the first counts, as
// in Megatron-Core's other kinds of folders.  `names`: the parameters in the order of modules, if
// it is known; else empty.  Lifetime: arrays read the source of `made`. Throws: kKey for a key of
// another form, or without the float32 copy; kShape for sizes that contradict each other;
// kShardMissing if a part of a parameter has no state; kOverlap if one has two; what BucketLayout
// throws.
void read_buckets(const std::vector<Value::Entry>& entries, const std::vector<std::string>& names,
                  const std::string& path, arrays::ComputedTensors& made, ModuleState& state);

}  // namespace fsdp::formats::megatron
