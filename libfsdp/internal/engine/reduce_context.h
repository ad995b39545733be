// SPDX-License-Identifier: Apache-2.0
// What the reductions of an engine share.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libfsdp/internal/engine/buffers.h"
#include "libfsdp/internal/engine/streams.h"
#include "libfsdp/internal/engine/unit.h"
#include "libfsdp/internal/trace/trace.h"
#include "libfsdp/options.h"

namespace fsdp::internal {

struct ReduceContext {
  std::shared_ptr<ProcessGroup> shard_group;
  std::shared_ptr<ProcessGroup> replicate_group;  // null: no replicas
  Streams* streams = nullptr;
  Buffers* buffers = nullptr;
  bool flat = false;  // gradients are published to FlatGroup::flat
  bool keep_low_precision = false;
  CommHook hook;  // null: the library's own
  Trace* trace = nullptr;
};

}  // namespace fsdp::internal
