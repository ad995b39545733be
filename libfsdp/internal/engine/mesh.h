// SPDX-License-Identifier: Apache-2.0
// Selects the ranks that a module is sharded over, and those that hold copies of the shards.
#pragma once

#include <memory>

#include "libfsdp/options.h"
#include "libfsdp/process_group.h"

namespace fsdp::internal {

struct Mesh {
  std::shared_ptr<ProcessGroup> shard;      // of size 1: nothing is sharded
  std::shared_ptr<ProcessGroup> replicate;  // null: no copies
};

// Collective.  Makes the groups that a strategy needs from those of the options.
// Throws: c10::Error if the hybrid strategies cannot tell which ranks share a node, if ranks do not
// fill the nodes, or if a replicate group is given and nothing uses it.
Mesh mesh_of(const FsdpOptions& options);

}  // namespace fsdp::internal
