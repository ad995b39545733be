// SPDX-License-Identifier: Apache-2.0
// CRC-32 as zip has it (polynomial 0xEDB88320, reflected), at memory speed, also of runs of bytes
// from the CRCs of their parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace fsdp::formats {

// Returns the CRC of the bytes whose CRC is `before`, followed by `bytes`; start with 0.
std::uint32_t crc32(std::uint32_t before, std::span<const std::byte> bytes) noexcept;

// Returns the CRC of A followed by B, from the CRC of each and the length of B.
std::uint32_t crc32_combine(std::uint32_t a, std::uint32_t b, std::uint64_t b_bytes) noexcept;

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
