// SPDX-License-Identifier: Apache-2.0
// Compares the shards that must be the same along dimensions of a mesh that cut no parameter.
#pragma once

#include <memory>
#include <vector>

namespace fsdp::internal {

struct Unit;

// Collective over the units' meshes, if they have one.  Reads every shard once.
// Throws: c10::Error naming the dimension, the ranks and the first parameter that differs.
void require_same_copies(const std::vector<std::unique_ptr<Unit>>& units);

}  // namespace fsdp::internal
