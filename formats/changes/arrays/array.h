// SPDX-License-Identifier: Apache-2.0
// Tensors as a map sees them: a shape, and for each part of it the place its elements come from.
// Moves (split, transpose, reshape, ...) change the parts, never data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "formats/bytes/base/dtype.h"
#include "formats/state/model/box.h"
#include "formats/state/model/chunk_data.h"

namespace fsdp::formats {
class StorageChecks;
}

namespace fsdp::formats::arrays {

// A tensor that elements come from: one of a checkpoint, a constant, or one that is computed while
// it is read.  Thread-safe.
class Operand {
 public:
  Operand() = default;
  Operand(const Operand&) = delete;
  Operand& operator=(const Operand&) = delete;
  virtual ~Operand() = default;
  virtual DType dtype() const = 0;
  // Return its key, and its key with its checkpoint, for messages.
  virtual std::string key() const { return "a computed tensor"; }
  virtual std::string name() const { return key(); }
  // The chunks that tile the operand, and their boxes.
  virtual std::size_t chunk_count() const = 0;
  virtual Box chunk_box(std::size_t chunk) const = 0;
  // Throws: the errors of Checkpoint::chunk.
  virtual ChunkData open(std::size_t chunk) const = 0;
  // Hint: open() follows.  Returns whether more hints are worth giving.
  virtual bool expect(std::size_t /*chunk*/) const { return false; }
  // Returns the state of the checksums of its checkpoint's storages; null if it has none.
  virtual std::shared_ptr<StorageChecks> checks() const { return nullptr; }
  // Returns whether opening it may take long, so that it is worth keeping open.
  virtual bool computes() const { return false; }
};

// The place of a box's elements in an operand: index i of the box, counted from its corner, is the
// operand's index whose dimension e is base[e] + the sum of i[d] * step[d] over all d with dim[d]
// == e.
struct View {
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::vector<std::int64_t> base;  // one for each dimension of the operand
  std::vector<std::size_t> dim;    // one for each dimension of the box; kNone: the same elements
  std::vector<std::int64_t> step;  // not negative
};

// A box of an array, and where its elements come from.
struct Part {
  Box box;
  std::shared_ptr<const Operand> operand;
  View view;
};

// Requires: the parts tile the shape and have the dtype; none is empty.
struct Array {
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
  std::vector<Part> parts;
};

inline std::uint64_t numel_of(const Array& array) {
  return volume({array.shape, array.shape});
}

// Throws: kOverflow if the bytes of a tensor, or the product of some of its sizes, exceed 63 bits.
void check_bytes(std::span<const std::int64_t> shape, DType dtype);

// Returns a whole operand of that shape as an array.
Array whole_array(std::shared_ptr<const Operand> operand, std::vector<std::int64_t> shape);

// Returns where an element comes from: "step-400: 'a.weight': element [3, 5]".  `element`: its
// position in row-major order.  Requires: the element lies inside the array.
std::string element_text(const Array& array, std::uint64_t element);

// Returns elements [begin, begin + size) along a dimension.  Requires: they lie inside the array.
Array sliced(const Array& array, std::size_t dim, std::int64_t begin, std::int64_t size);

// Returns the arrays one after the other along a dimension.  Requires: shapes that are equal but
// for that dimension, equal dtypes, and at least one array.
Array concatenated(std::span<const Array> arrays, std::size_t dim);

// Joins parts that follow each other in the list, and continue each other along one dimension.
void join_neighbours(std::vector<Part>& parts);

// Returns the arrays as the elements of a new dimension `dim`.  Requires: equal shapes and dtypes,
// and at least one array.
Array stacked(std::span<const Array> arrays, std::size_t dim);
// Returns the array with a new dimension of one element before dimension `dim`.
Array with_dimension(const Array& array, std::size_t dim);
// Returns the array without dimension `dim`.  Requires: the dimension has one element.
Array without_dimension(const Array& array, std::size_t dim);

// Returns the array with dimension order[d] as its dimension d.  Requires: a permutation.
Array permuted(const Array& array, std::span<const std::size_t> order);

// Returns the same elements, in row-major order, in another shape.  Joining dimensions whose
// elements lie apart cuts the array into more parts.  If there would be more than `max_parts`, the
// result is one part whose elements are gathered as they are read (see computed.h).
// Requires: an equal number of elements.
inline constexpr std::size_t kMaxParts = 512;
Array reshaped(const Array& array, std::span<const std::int64_t> shape,
               std::size_t max_parts = kMaxParts);

// A box of an array that lies in one chunk of its operand.
struct PlacedPart {
  Box box;
  std::shared_ptr<const Operand> operand;
  std::size_t chunk = 0;
  View view;
};

// Cuts the parts along the chunks of their operands.
std::vector<PlacedPart> placed_parts(const Array& array);

// Returns where the elements of a placed part lie.  `chunk`: as Operand::open returns it.
ChunkData chunk_data(const PlacedPart& part, ChunkData chunk);

}  // namespace fsdp::formats::arrays
