// SPDX-License-Identifier: Apache-2.0
// The JSON of a safetensors header, parsed and checked tensor by tensor; `read_header` checks the
// tensors' places against each other and the file.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/bytes/base/dtype.h"
#include "formats/families/safetensors/file.h"

namespace fsdp::formats::safetensors {

// A tensor, in the order of the header.  Offsets count from the start of the data; `tensor.begin`
// is not set.
struct HeaderEntry {
  Tensor tensor;
  std::uint64_t name_offset;  // of the name's opening quote, for messages
  std::uint64_t data_begin;
  std::uint64_t data_end;  // not before data_begin; the size follows from dtype and shape
};

struct HeaderJson {
  std::vector<HeaderEntry> entries;
  std::vector<std::pair<std::string, std::string>> metadata;
};

// Parses the text of a header.  `base_offset` is the offset of the text in the file.
// Throws: kStJson, kStDuplicate, kStField, kStDtype, kStShape, kStOffsets, kStSize, kStMetadata,
// kName, kJsonDepth.
HeaderJson parse_header_json(std::string_view text, std::uint64_t base_offset);

// Rules for the header of a safetensors file, read or written: limits, sizes, unique names.
// For the safetensors files of this folder only.

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
