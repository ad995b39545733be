// SPDX-License-Identifier: Apache-2.0
// What the reductions of an engine share.
#pragma once

#include "libfsdp/internal/engine/buffers.h"
#include "libfsdp/internal/engine/streams.h"
#include "libfsdp/internal/trace/trace.h"
#include "libfsdp/internal/units/unit.h"

namespace fsdp::internal {

struct ReduceContext {
  Streams* streams = nullptr;
  Buffers* buffers = nullptr;
  Trace* trace = nullptr;
};

}  // namespace fsdp::internal
