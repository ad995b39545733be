// SPDX-License-Identifier: Apache-2.0
// A checkpoint whose tensors are arrays over those of another: what a map makes, as the writers of
// all formats read it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "formats/changes/arrays/array.h"
#include "formats/changes/arrays/read_context.h"
#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats::arrays {

// Lifetime: the source outlives it.
class ArrayCheckpoint : public Checkpoint {
 public:
  // Holds nothing yet.
  explicit ArrayCheckpoint(const Checkpoint& source);

  // A tensor of the source.
  Array source_array(std::size_t tensor);
  // Keeps the source alive, where nothing else does.
  void own(std::unique_ptr<const Checkpoint> source) { owned_ = std::move(source); }
  // Returns the number of a new tensor.  `path`: its place, for messages.
  std::size_t add(KeyPath path, const Array& array);

  ChunkData chunk(const TensorEntry& tensor, std::size_t chunk) const override;
  bool expect_chunk(const TensorEntry& tensor, std::size_t chunk, ElementRange part) const override;
  Value value(const ValueEntry& value) const override;
  ChunkData storage(const StorageRef& storage) const override;
  // Requires: not called; a map's result is checked once it is written.
  VerifyReport verify(const VerifyOptions& options) const override;
  // Compares the checksums of storages that computed tensors read, too.  Throws: kZipCrc, kChanged.
  void check_unchanged() const override;

 private:
  std::unique_ptr<const Checkpoint> owned_;
  const Checkpoint& source_;
  std::shared_ptr<ReadContext> context_ = std::make_shared<ReadContext>();
  std::vector<std::shared_ptr<const Operand>> operands_;  // by tensor of the source
  std::vector<PlacedPart> parts_;  // of all tensors; a chunk's location tells its position
};

}  // namespace fsdp::formats::arrays
