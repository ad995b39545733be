// SPDX-License-Identifier: Apache-2.0
// What can be known to be wrong with a checkpoint before its data are copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "formats/checkpoint/checkpoint.h"

namespace fsdp::formats {

// What the check came across that an output is going to differ in from its source, or may keep.
struct CopyCheck {
  // Tensors, by class, whose elements are computed from what a library keeps (low_bit_tensor.h).
  std::map<std::string, std::uint64_t> computed;
  // Tensors of the index that are an object of a library's class each, and that object.
  std::map<std::size_t, Value> objects;
};

// What becomes of such objects.
enum class LibraryTensors { kRefused, kKept };

// Looks at what `content` (see content.h) refers to: what opening found, chunks that do not tile
// their tensor, files missing or too short, and every chunk's own headers against the index.
// Throws: the first damage found, else the first that is unknown.  `cancelled` is asked now and
// then (kInterrupted).
CopyCheck check_before_copy(const Checkpoint& checkpoint, const Value& content,
                            const std::function<bool()>& cancelled,
                            LibraryTensors library_tensors = LibraryTensors::kRefused);

// `content` with the objects in the places of the tensors.
Value with_objects(const Value& content, const CopyCheck& check);

}  // namespace fsdp::formats
