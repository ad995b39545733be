// SPDX-License-Identifier: Apache-2.0
// Finds damage in a checkpoint before its data are copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "formats/bytes/base/team.h"
#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats {

// Tensors that an output will hold differently from its source, or may keep as objects.
struct CopyCheck {
  // The number of tensors, by class, whose elements are computed from a library's own encoding
  // (low_bit_tensor.h).
  std::map<std::string, std::uint64_t> computed;
  // Tensors of the index that are each an object of a library's class, with that object.
  std::map<std::size_t, Value> objects;
};

// What is done with objects of a library's class.
enum class LibraryTensors { kRefused, kKept };

// Checks everything that `content` (see content.h) refers to: findings of opening, chunks that do
// not tile their tensor, files missing or too short, and every chunk's own headers against the
// index.  The members of a team all make this call, divide the headers among them, and throw or
// return the same.
// Throws: the first damage found, else the first finding that is unknown; kInterrupted, as soon as
// `cancelled` returns true.
CopyCheck check_before_copy(const Checkpoint& checkpoint, const Value& content,
                            const std::function<bool()>& cancelled,
                            LibraryTensors library_tensors = LibraryTensors::kRefused,
                            Team& team = this_process());

// Returns `content` with the objects in place of their tensors.
Value with_objects(const Value& content, const CopyCheck& check);

}  // namespace fsdp::formats
