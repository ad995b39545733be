// SPDX-License-Identifier: Apache-2.0
// Floating elements as numbers of 8 bits or fewer, with a scale for each block of them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "formats/bytes/base/interface.h"
#include "formats/changes/arrays/array.h"
#include "formats/changes/arrays/block_grid.h"

namespace fsdp::formats::arrays {

// What the elements of a block have in common.
struct BlockScale {
  float stored = 1;   // what the checkpoint holds as the scale of the block
  float divisor = 1;  // what `encode` divides elements by, or multiplies them with
  float zero = 0;     // what the checkpoint holds as the zero point of the block
};

// How one scheme makes numbers of elements.  Thread-safe.
class Quantizer : public Interface {
 public:
  // Returns the scale of a block from its least and its largest element, both finite.
  // Throws: kUnsupported, saying why no scale of this scheme holds them.
  virtual BlockScale scale(float least, float most) const = 0;
  // Fills `codes` with the numbers of elements of one block.  May change the elements.
  virtual void encode(std::span<float> elements, const BlockScale& scale,
                      std::span<std::uint8_t> codes) const = 0;
};

// An array that is quantized.  Only the scales of some blocks are kept: elements are read once for
// the scales and once for the numbers, and once more for each array that holds scales.
//
// Requires: the dtype of `array` is floating; it has as many elements as the grid says.
// All throw while their result is read: kUnsupported naming an element that is NaN or infinite, or
// the first element of a block that has no scale.
struct Quantization {
  Array array;
  BlockGrid grid;
  std::shared_ptr<const Quantizer> quantizer;
};

// Returns the numbers: of a dtype of one byte, in the shape of the array.
Array quantized_numbers(const Quantization& from, DType dtype);
// Returns the scales, of a floating dtype or as uint8, in a shape that has an element for each
// block.  An empty array has scales of 1.
Array quantized_scales(const Quantization& from, const std::vector<std::int64_t>& shape,
                       DType dtype);
// Returns the zero points plus a number, as uint8.  Requires: the array is not empty.
Array quantized_zeros(const Quantization& from, const std::vector<std::int64_t>& shape, int plus);

// Returns the largest magnitude of an array that is not empty.  Reads all of it.
// Throws: kUnsupported naming an element that is NaN or infinite.
float largest_magnitude(const Array& array);

}  // namespace fsdp::formats::arrays
