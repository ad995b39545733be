// SPDX-License-Identifier: Apache-2.0
// CRC-32 as zip has it (polynomial 0xEDB88320, reflected), at memory speed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fsdp::formats {

// Returns the CRC of the bytes whose CRC is `before`, followed by `bytes`; start with 0.
std::uint32_t crc32(std::uint32_t before, std::span<const std::byte> bytes) noexcept;

// Returns the CRC of A followed by B, from the CRC of each and the length of B.
std::uint32_t crc32_combine(std::uint32_t a, std::uint32_t b, std::uint64_t b_bytes) noexcept;

}  // namespace fsdp::formats
