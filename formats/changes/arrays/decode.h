// SPDX-License-Identifier: Apache-2.0
// Numbers of 8 bits or fewer, as weights store them in bytes and words, as float32.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "formats/changes/arrays/array.h"

namespace fsdp::formats::arrays {

// What the bits of a number mean.
enum class Code {
  kSigned,    // an integer, two's complement
  kUnsigned,  // an integer from 0 on
  kOffset,    // an integer, plus 2^(bits - 1)
  kTable,     // what a table says
  kFloat4  // E2M1 of OCP Microscaling Formats 1.0: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives
};

// Numbers that lie in the elements of an integer dtype.
struct Packing {
  Code code = Code::kSigned;
  unsigned bits = 8;  // 1 to 8
  // The place of each number in an element, from the lowest bits on, if that holds at most eight
  // whole ones.  Else numbers follow each other, and may begin in one element and end in the next.
  std::array<std::uint8_t, 8> order = {0, 1, 2, 3, 4, 5, 6, 7};
  // Numbers follow each other along the first of two dimensions, else along the last dimension.
  bool first_dimension = false;
  std::vector<float> table = {};  // kTable: the number of each code
  std::uint32_t plus = 0;         // what is added to an element first, modulo 2^32
};

// Returns the elements that `count` numbers of a row take in an integer dtype, rounded up.
std::uint64_t packed_size(std::uint64_t count, unsigned bits, DType dtype);

// Returns the array of numbers.  `shape`: of the numbers; it is that of `stored` but for the packed
// dimension, whose elements may lie in several dimensions at the end of `stored`.
// Requires: `stored` is of int8, uint8, int32 or a packed float; the packed dimension has
// packed_size elements; numbers that are packed along the first dimension end where their element
// ends; a table has a number for each code; `plus` is 0 but for int32.
Array decoded(const Array& stored, const Packing& packing, const std::vector<std::int64_t>& shape);

// Returns the values of an array of packed floats as float32; the last dimension counts them.
// Throws: kOverflow for sizes beyond 64 bits.  Requires: is_packed_float.
Array unpacked(const Array& array);

// Returns the array of powers of two whose exponents, plus 127, are bytes.
// Requires: `exponents` is of uint8 or float8_e8m0fnu.
// Throws while the result is read: kUnsupported naming an exponent of 255, which is NaN.
Array powers_of_two(const Array& exponents);

}  // namespace fsdp::formats::arrays
