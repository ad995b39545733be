// SPDX-License-Identifier: Apache-2.0
// Tensors that a checkpoint holds as objects of a library's class, which only that library can take
// apart into elements.
#pragma once

#include <cstddef>
#include <optional>

#include "formats/bytes/base/interface.h"
#include "formats/containers/pickle/value.h"
#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats {

// An interface that checkpoints implement if they may hold such tensors.
class TensorObjects : public Interface {
 public:
  // Returns the object of a tensor that Checkpoint::chunk refuses for its class, for an output that
  // keeps objects; its storages are references for Checkpoint::storage.  Returns nothing for all
  // other tensors, and for a tensor that lies in several chunks.
  // Requires: the index was not narrowed.  Throws: the errors of the containers, with file and key.
  virtual std::optional<Value> tensor_object(std::size_t tensor) const = 0;
};

// Does the same for any checkpoint; returns nothing without the interface.
inline std::optional<Value> tensor_object(const Checkpoint& checkpoint, std::size_t tensor) {
  const auto* objects = dynamic_cast<const TensorObjects*>(&checkpoint);
  return objects == nullptr ? std::nullopt : objects->tensor_object(tensor);
}

}  // namespace fsdp::formats
