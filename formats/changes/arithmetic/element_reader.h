// SPDX-License-Identifier: Apache-2.0
// A tensor that another one is computed from, read by ranges of its elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "formats/bytes/base/dtype.h"

namespace fsdp::formats {

// Thread-safe.
class ElementReader {
 public:
  ElementReader() = default;
  ElementReader(const ElementReader&) = delete;
  ElementReader& operator=(const ElementReader&) = delete;
  virtual ~ElementReader() = default;
  virtual DType dtype() const = 0;
  // Fills `out` with the elements from `first` on, in row-major order.  `scratch`: at least as
  // large as `out`.  Throws: the errors of reading.
  virtual void read(std::uint64_t first, std::span<std::byte> out,
                    std::span<std::byte> scratch) const = 0;
};

}  // namespace fsdp::formats
