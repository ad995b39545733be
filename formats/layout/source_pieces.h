// SPDX-License-Identifier: Apache-2.0
// Tensors and storages of an open checkpoint as pieces for the copy engine.
#pragma once

#include <cstddef>
#include <functional>

#include "formats/layout/checkpoint.h"
#include "formats/model/copy.h"

namespace fsdp::formats {

// The whole tensor, dense and row-major; its place in the output is still to be set.
// Lifetime: the checkpoint outlives the piece.
TargetPiece whole_tensor_piece(const Checkpoint& checkpoint, std::size_t tensor);

// The bytes of a storage as they are (little-endian).
// Throws: kUnsupported where a big-endian storage does not say how wide its elements are.
TargetPiece storage_piece(const Checkpoint& checkpoint, const StorageRef& storage);

// Everything that can be known to be wrong before a byte is copied: what opening found, chunks that
// do not tile their tensor, files missing or too short, and every chunk's own headers against the
// index. Throws: the first damage found.  `cancelled` is asked now and then (kInterrupted).
void check_before_copy(const Checkpoint& checkpoint, const std::function<bool()>& cancelled);

}  // namespace fsdp::formats
