// SPDX-License-Identifier: Apache-2.0
// Buffers for computing elements.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "formats/bytes/base/spares.h"

namespace fsdp::formats::arrays {

// Elements that are computed at a time: reads are long enough for a disk, and the elements stay in
// a core's second-level cache.
inline constexpr std::size_t kComputedNumel = 65536;

// A buffer on loan, enough for that many elements of a floating dtype.  There are as many as were
// needed at once: some for each thread, and for each computation inside another.
class Scratch {
 public:
  Scratch() : buffer_(buffers().take()) {}
  std::span<std::byte> bytes() const { return *buffer_; }
  // Returns the first bytes of the buffer.
  std::span<std::byte> first(std::size_t count) const { return bytes().first(count); }

 private:
  using Buffer = std::array<std::byte, kComputedNumel * sizeof(double)>;
  static Spares<Buffer>& buffers() {
    static Spares<Buffer> all;
    return all;
  }
  Spares<Buffer>::Loan buffer_;
};

}  // namespace fsdp::formats::arrays
