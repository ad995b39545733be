// SPDX-License-Identifier: Apache-2.0
// Elements of tensors as text, in full precision.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <span>
#include <string>
#include <vector>

#include "formats/bytes/base/dtype.h"
#include "formats/bytes/base/json.h"

namespace fsdp::cli {

// Returns the shortest text that reads back as the same element: 0.1, -inf, nan, True, (1.0+2.0j);
// for types whose elements are not numbers, their bytes: 0x7f.
std::string element_text(formats::DType dtype, std::span<const std::byte> element);
// The same for JSON: NaN and infinities become "NaN", "Infinity", "-Infinity"; complex numbers
// become lists of two numbers.
formats::Json element_json(formats::DType dtype, std::span<const std::byte> element);

// Prints the elements of a dense row-major array, given in order, in nested brackets, one row per
// line.  `elided`: only the first and the last three of a dimension of more than six are printed.
class ArrayPrinter {
 public:
  ArrayPrinter(formats::DType dtype, std::vector<std::int64_t> shape, bool elided,
               std::ostream& out);
  // Prints the next elements.
  void add(std::span<const std::byte> elements);
  // Ends the output after all elements.
  void finish();

 private:
  void print(std::span<const std::byte> element);
  void advance();
  bool cut(std::size_t dimension) const;
  bool shown() const;

  formats::DType dtype_;
  std::vector<std::int64_t> shape_;
  bool elided_;
  std::ostream& out_;
  std::vector<std::int64_t> at_;
  bool any_ = false;
};

}  // namespace fsdp::cli
