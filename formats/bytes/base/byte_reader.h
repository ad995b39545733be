// SPDX-License-Identifier: Apache-2.0
// A bounds-checked cursor over bytes in memory, little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace fsdp::formats {

// Reads fields in file order.  Each read names the field, so that the message of a short read says
// which field it was: "cd_offset needs 8 bytes at byte 4, but only 1 remain".
// Lifetime: the bytes outlive the reader and every span it returns.
class ByteReader {
 public:
  // `base_offset` is the offset of `bytes` in the file; it only shifts the positions in messages.
  explicit ByteReader(std::span<const std::byte> bytes, std::uint64_t base_offset = 0)
      : bytes_(bytes), base_offset_(base_offset) {}

  // Throws: kTruncated.
  std::uint8_t u8(std::string_view what);
  std::uint16_t u16(std::string_view what);
  std::uint32_t u32(std::string_view what);
  std::uint64_t u64(std::string_view what);
  std::span<const std::byte> take(std::uint64_t count, std::string_view what);
  std::string_view text(std::uint64_t count, std::string_view what);
  void skip(std::uint64_t count, std::string_view what) { take(count, what); }

  std::uint64_t remaining() const { return bytes_.size() - at_; }
  // Returns the position of the next byte in the file.
  std::uint64_t offset() const { return base_offset_ + at_; }

 private:
  std::span<const std::byte> bytes_;
  std::uint64_t base_offset_;
  std::size_t at_ = 0;
};

// Return the little-endian integer at `at`.  Requires: the integer lies inside `bytes`.
std::uint16_t load_u16(std::span<const std::byte> bytes, std::size_t at);
std::uint32_t load_u32(std::span<const std::byte> bytes, std::size_t at);
std::uint64_t load_u64(std::span<const std::byte> bytes, std::size_t at);

}  // namespace fsdp::formats
