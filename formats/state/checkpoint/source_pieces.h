// SPDX-License-Identifier: Apache-2.0
// Tensors and storages of an open checkpoint as pieces for the copy engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/model/copy.h"

namespace fsdp::formats {

// Returns the whole tensor, dense and row-major; the caller sets its place in the output.
// Lifetime: the checkpoint outlives the piece.
TargetPiece whole_tensor_piece(const Checkpoint& checkpoint, std::size_t tensor);

// The chunks that were opened last, for successive pieces of a tensor: neighbouring pieces often
// meet the same chunk.  Few, because each may hold a file open.
class ChunkCache {
 public:
  // Returns chunk `chunk` of tensor `tensor`; opens it if it is not in the cache.
  // Throws: the errors of Checkpoint::chunk.
  const ChunkData& get(const Checkpoint& checkpoint, std::size_t tensor, std::size_t chunk);

 private:
  struct Held {
    std::size_t tensor;
    std::size_t chunk;
    ChunkData data;
  };
  std::vector<Held> held_;  // the one used last at the end
};

// The chunks of one tensor, for pieces that are parts of it.  Finds the chunks that intersect a box
// without looking at all of them.  Lifetime: the checkpoint outlives the source.
class TensorSource {
 public:
  TensorSource(const Checkpoint& checkpoint, std::size_t tensor,
               std::shared_ptr<ChunkCache> cache = std::make_shared<ChunkCache>())
      : checkpoint_(checkpoint), tensor_(tensor), cache_(std::move(cache)) {}
  const TensorEntry& tensor() const { return checkpoint_.index().tensors[tensor_]; }
  // Throws: the errors of Checkpoint::chunk.
  std::vector<SourceChunk> chunks_that_meet(const Box& box);
  // Hint: `chunks_that_meet(box)` follows.
  bool expect(const Box& box, ElementRange part);

 private:
  struct Placed {
    std::int64_t begin;  // along dimension 0
    std::int64_t reach;  // the furthest end of this chunk and those before it
    std::uint32_t chunk;
  };
  void sort_chunks();
  std::vector<std::size_t> numbers_of_chunks_that_meet(const Box& box);

  const Checkpoint& checkpoint_;
  std::size_t tensor_;
  std::shared_ptr<ChunkCache> cache_;
  bool sorted_ = false;
  std::vector<Placed> placed_;  // by `begin`; chunks without elements left out
};

// Returns a box of a tensor, dense and row-major, cast if `dtype` is not the tensor's; the caller
// sets its place in the output.  Requires: can_cast.
TargetPiece box_piece(std::shared_ptr<TensorSource> source, Box box, DType dtype);

// Returns the bytes of a storage as they are (little-endian).
// Throws: kUnsupported if a big-endian storage does not say how wide its elements are.
TargetPiece storage_piece(const Checkpoint& checkpoint, const StorageRef& storage);

}  // namespace fsdp::formats
