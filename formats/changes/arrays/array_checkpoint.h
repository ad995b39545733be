// SPDX-License-Identifier: Apache-2.0
// A checkpoint whose tensors are arrays over the tensors of another checkpoint: the result of a
// map, readable by the writers of all formats.
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

// Lifetime: the source outlives this checkpoint.
class ArrayCheckpoint : public Checkpoint {
 public:
  // Holds nothing yet.
  explicit ArrayCheckpoint(const Checkpoint& source);

  // Returns a tensor of the source as an array.
  Array source_array(std::size_t tensor);
  // Takes ownership of the source.
  void own(std::unique_ptr<const Checkpoint> source) { owned_ = std::move(source); }
  // Adds a tensor and returns its number.  `path`: its place, for messages.
  std::size_t add(KeyPath path, const Array& array);

  ChunkData chunk(const TensorEntry& tensor, std::size_t chunk) const override;
  bool expect_chunk(const TensorEntry& tensor, std::size_t chunk, ElementRange part) const override;
  Value value(const ValueEntry& value) const override;
  ChunkData storage(const StorageRef& storage) const override;
  // Must not be called: a map's result is verified after it is written.
  VerifyReport verify(const VerifyOptions& options) const override;
  // Also compares the checksums of storages that computed tensors read.  Throws: kZipCrc, kChanged.
  void check_unchanged() const override;

 private:
  std::unique_ptr<const Checkpoint> owned_;
  const Checkpoint& source_;
  std::shared_ptr<ReadContext> context_ = std::make_shared<ReadContext>();
  std::vector<std::shared_ptr<const Operand>> operands_;  // by tensor of the source
  std::vector<PlacedPart> parts_;  // of all tensors; a chunk's location holds an index into it
};

}  // namespace fsdp::formats::arrays
