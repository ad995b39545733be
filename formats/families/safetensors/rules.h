// SPDX-License-Identifier: Apache-2.0
// Rules for the header of a safetensors file, read or written: limits, sizes, unique names.
// For the safetensors files of this folder only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "formats/bytes/base/dtype.h"

namespace fsdp::formats::safetensors {

// The README's limit on the header ("prevents parsing extremely large JSON").
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
// The README sets no limit; PyTorch itself stops at 64 dimensions.
inline constexpr std::size_t kMaxRank = 64;
// No model comes near; messages and tables with a longer name are useless.
inline constexpr std::size_t kMaxNameBytes = std::size_t{64} * 1024;
// The size of the length in front of the header.
inline constexpr std::uint64_t kLengthBytes = 8;

inline constexpr std::string_view kMetadataKey = "__metadata__";

// Returns the bits of one element as the file counts them: 4 for F4, whose shape counts single
// values.
std::uint64_t item_bits(DType dtype) noexcept;

// Returns the bits of a tensor with the shape as in the file; nothing if they exceed 64 bits.  A
// zero dimension does not hide an overflow in the dimensions before it: the reference refuses that.
// Requires: no dimension is negative.
std::optional<std::uint64_t> total_bits(DType dtype, std::span<const std::int64_t> shape) noexcept;

// Returns the position of a name that also occurs earlier; nothing if all are different.
std::optional<std::size_t> find_duplicate(const std::vector<std::string_view>& names);

}  // namespace fsdp::formats::safetensors
