// SPDX-License-Identifier: Apache-2.0
// Which ranks a module is sharded over, and which hold copies of the shards.
#pragma once

#include <memory>

#include "libfsdp/options.h"
#include "libfsdp/process_group.h"

namespace fsdp {

struct Mesh {
  std::shared_ptr<ProcessGroup> shard;      // of size 1: nothing is sharded
  std::shared_ptr<ProcessGroup> replicate;  // null: no copies
};

// Collective.  The groups a strategy needs, made from those of the options.
// Throws: c10::Error where the hybrid strategies cannot tell which ranks share a node, or ranks do
// not fill the nodes; where a replicate group is given and nothing uses it.
Mesh mesh_of(const FsdpOptions& options);

}  // namespace fsdp
