// SPDX-License-Identifier: Apache-2.0
// Computes the CRC of a run of bytes from the CRCs of its parts, in any order.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace fsdp::formats {

class CrcLedger {
 public:
  struct Run {
    std::uint64_t begin;
    std::uint64_t bytes;
    std::uint32_t crc;  // of these bytes
  };
  // Adds the CRC of the `bytes` bytes from `begin` on.
  void add(std::uint64_t begin, std::uint64_t bytes, std::uint32_t crc);
  // Returns the CRC of bytes [0, total) if the parts tile them exactly, else nothing.  A part that
  // was added twice counts once.
  std::optional<std::uint32_t> total(std::uint64_t total) const;
  // Returns the parts added, in ascending order and without duplicates; adjacent parts are joined.
  std::vector<Run> runs() const;

 private:
  std::vector<Run> parts_;
};

}  // namespace fsdp::formats
