// SPDX-License-Identifier: Apache-2.0
// Operands whose elements are gathered or computed while they are read, block by block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "formats/changes/arrays/array.h"
#include "formats/changes/arrays/read_context.h"
#include "formats/state/model/copy.h"
#include "formats/state/model/piece_reader.h"

namespace fsdp::formats::arrays {

// Reads ranges of an array's elements in row-major order.  Thread-safe.
class ArrayReader {
 public:
  // Opens the chunks that hold the array's elements.  Throws: the errors of Checkpoint::chunk.
  ArrayReader(const Array& array, const std::shared_ptr<ReadContext>& context);
  // Reads elements [first, first + out.size() / item).  Throws: the errors of reading.
  void read(std::uint64_t first, std::span<std::byte> out) const;
  // Returns whether all that the reader reads carries checksums, which the context compares.
  bool checked() const { return checked_; }

 private:
  std::shared_ptr<ReadContext> context_;
  bool checked_ = true;
  TargetPiece piece_;
  std::unique_ptr<PieceReader> reader_;
};

// Elements that are computed in row-major order.
class ComputedSource : public ByteSource {
 public:
  // Returns whether all that the source reads carries checksums, which the context compares.
  virtual bool checked() const = 0;
};

// A dense tensor of one chunk.
class DenseOperand : public Operand {
 public:
  DenseOperand(DType dtype, std::vector<std::int64_t> shape)
      : dtype_(dtype), shape_(std::move(shape)) {}
  DType dtype() const override { return dtype_; }
  std::size_t chunk_count() const override { return 1; }
  Box chunk_box(std::size_t /*chunk*/) const override { return whole_box(shape_); }
  ChunkData open(std::size_t chunk, const std::shared_ptr<ReadContext>& context) const override;

 protected:
  // Returns the elements, dense and row-major.
  virtual std::shared_ptr<const ComputedSource> source(
      const std::shared_ptr<ReadContext>& context) const = 0;
  const std::vector<std::int64_t>& shape() const { return shape_; }

 private:
  DType dtype_;
  std::vector<std::int64_t> shape_;
};

// The elements of an array in row-major order, in a shape with as many elements.
class Gathered : public DenseOperand {
 public:
  Gathered(Array array, std::vector<std::int64_t> shape)
      : DenseOperand(array.dtype, std::move(shape)), array_(std::move(array)) {}

 protected:
  std::shared_ptr<const ComputedSource> source(
      const std::shared_ptr<ReadContext>& context) const override;

 private:
  Array array_;
};

}  // namespace fsdp::formats::arrays
