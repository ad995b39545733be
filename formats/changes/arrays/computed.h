// SPDX-License-Identifier: Apache-2.0
// Tensors whose elements are computed, or gathered, while they are read, block by block.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "formats/changes/arrays/array.h"
#include "formats/changes/arrays/scratch.h"
#include "formats/state/model/copy.h"
#include "formats/state/model/piece_reader.h"

namespace fsdp::formats::arrays {

// Reads ranges of an array's elements in row-major order, and compares checksums.  Thread-safe.
class ArrayReader {
 public:
  // Opens the chunks that hold the array's elements.  Requires: all are of one checkpoint.
  // Throws: the errors of Checkpoint::chunk; kHole.
  explicit ArrayReader(const Array& array);

  DType dtype() const { return piece_.dtype; }
  // Fills `out` with elements from `first` on.  Compares the checksums once every element was read;
  // ArraySource::finish compares those of storages that were read only in part.
  // Throws: kZipCrc, kHole, the errors of reading.
  void read(std::uint64_t first, std::span<std::byte> out) const;
  // Does the same with the elements cast.  Requires: can_cast.
  void read_as(DType to, std::uint64_t first, std::span<std::byte> out) const;
  // Returns whether all that the reader reads carries checksums.
  bool checked() const { return checked_; }

 private:
  TargetPiece piece_;
  bool checked_ = true;
  std::shared_ptr<StorageChecks> checks_;
  std::unique_ptr<PieceReader> reader_;
  std::uint64_t bytes_;
  mutable std::atomic<std::uint64_t> read_{0};
};

// Returns whether the arrays have the same dtype, shape and bits.  `on_bytes`, if set, is called
// with the number of bytes that were read since the last call; everything is read then, even after
// a difference, so that all checksums are compared.
bool equal_arrays(const Array& a, const Array& b,
                  const std::function<void(std::uint64_t)>& on_bytes = {});

// Elements that are computed in row-major order.
class ComputedSource : public ByteSource {
 public:
  ComputedSource(DType dtype, std::uint64_t numel) : dtype_(dtype), numel_(numel) {}
  std::uint64_t size() const override { return numel_ * item_bytes(dtype_); }
  // Throws: kTruncated if these are not whole elements of the source; the errors of reading.
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override;
  // Returns whether all that the source reads carries checksums, which are compared.
  bool checked() const { return checked_; }
  DType dtype() const { return dtype_; }
  std::uint64_t numel() const { return numel_; }

 protected:
  // Computes elements from `first` on, kComputedNumel at most.
  virtual void compute(std::uint64_t first, std::span<std::byte> out) const = 0;
  // Opens an array that elements are computed from.
  std::unique_ptr<ArrayReader> opened(const Array& array);
  // Returns all elements of such an array, cast.
  std::vector<std::byte> elements_of(const Array& array, DType to);
  void note_unchecked() { checked_ = false; }

 private:
  DType dtype_;
  std::uint64_t numel_;
  bool checked_ = true;
};

// Returns an array whose elements `open` computes.  `open` is called before elements are read,
// possibly more than once, by several threads.
Array computed_array(DType dtype, std::vector<std::int64_t> shape,
                     std::function<std::shared_ptr<const ComputedSource>()> open);

// Returns the array in a shape of as many elements as one part, whose elements are gathered.
Array gathered(const Array& array, std::span<const std::int64_t> shape);

}  // namespace fsdp::formats::arrays
