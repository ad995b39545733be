// SPDX-License-Identifier: Apache-2.0
// What can be known to be wrong with a checkpoint before its data are copied.
#pragma once

#include <functional>

#include "formats/layout/checkpoint.h"

namespace fsdp::formats {

// Looks at what `content` (see content.h) refers to: what opening found, chunks that do not tile
// their tensor, files missing or too short, and every chunk's own headers against the index.
// Throws: the first damage found, else the first that is unknown.  `cancelled` is asked now and
// then (kInterrupted).
void check_before_copy(const Checkpoint& checkpoint, const Value& content,
                       const std::function<bool()>& cancelled);

}  // namespace fsdp::formats
