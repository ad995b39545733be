// SPDX-License-Identifier: Apache-2.0
// What the gathers and reductions of an engine share.
#pragma once

#include "libfsdp/internal/engine/buffers.h"
#include "libfsdp/internal/engine/gather_check.h"
#include "libfsdp/internal/engine/streams.h"
#include "libfsdp/internal/trace/trace.h"

namespace fsdp::internal {

struct EngineContext {
  Streams& streams;
  Buffers& buffers;
  GatherChecks& checks;
  Trace* trace = nullptr;  // null: tracing is off
};

}  // namespace fsdp::internal
