// SPDX-License-Identifier: Apache-2.0
// One safetensors file: u64 N, N bytes of JSON, then the tensors' bytes without holes.
// Source: the README of huggingface/safetensors, "Format".
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/bytes/base/byte_source.h"
#include "formats/bytes/base/dtype.h"

namespace fsdp::formats::safetensors {

struct Tensor {
  std::string name;
  DType dtype;
  // In elements of `dtype`: the last dimension of a kFloat4E2M1FNx2 is half of that in the file,
  // that of kFloat6*x4 a fourth.
  std::vector<std::int64_t> shape;
  std::uint64_t begin;  // of its bytes, from the start of the file
  std::uint64_t bytes;
};

struct Header {
  // Ordered by their bytes in the file; of two that begin at the same place, the empty one is
  // first.
  std::vector<Tensor> tensors;
  std::vector<std::pair<std::string, std::string>> metadata;  // __metadata__, empty if absent
  std::uint64_t data_offset = 0;                              // the beginning of the tensors' bytes
  std::uint64_t end = 0;  // the end of the last one, from the start of the file
};

enum class Trailing { kRefuse, kAllow, kAllowEither };

// Reads and checks a header.  Stricter than the reference implementation where the README is
// (duplicate names, a header that does not begin with '{') and about unprintable names; never
// looser.  Ignores unknown fields of a tensor, as the reference does.
// `offset`: the beginning of the safetensors data in `source` (DCP puts them after other items);
// positions in the result and in messages count from the start of `source`.
// kAllow: bytes may follow the last tensor.  kAllowEither: and tensors may lie past the end of the
// source, which was cut off; the caller compares places with the size.
// Throws: kStHeader (length), kStJson, kStDuplicate, kStField, kStDtype, kStShape, kStOffsets,
// kStSize, kStMetadata, kName, kJsonDepth, kIo.
Header read_header(const ByteSource& source, std::uint64_t offset = 0,
                   Trailing trailing = Trailing::kRefuse);

// Returns the start of a file (length, JSON padded with blanks to a multiple of 8) for tensors laid
// out in this order without holes; sets `begin` of each.  `metadata` goes under __metadata__, which
// is omitted if it is empty.
// Throws: kUnsupported naming a tensor whose dtype safetensors lacks, kName, kStDuplicate,
// kStShape, kStSize (`bytes` does not follow from dtype and shape), kStMetadata, kStHeader (more
// than 100 MB).
std::string make_header(std::vector<Tensor>& tensors,
                        const std::vector<std::pair<std::string, std::string>>& metadata);

// Orders tensors as the reference implementation stores them: large elements first, which keeps all
// aligned without padding, then by name.
bool stored_before(const Tensor& a, const Tensor& b);

// Throws: kName if a tensor in a file cannot have this name: empty, with control characters, longer
// than 64 KiB, not UTF-8, or the reserved "__metadata__".
void check_tensor_name(std::string_view name);

// The JSON of a safetensors header, parsed and checked tensor by tensor; `read_header` checks the
// tensors' places against each other and the file.

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

// Returns the bits of one element as the file counts them: 4 for F4 and 6 for F6, whose shapes
// count single values.
std::uint64_t item_bits(DType dtype) noexcept;

// Returns the bits of a tensor with the shape as in the file; nothing if they exceed 64 bits.  A
// zero dimension does not hide an overflow in the dimensions before it: the reference refuses that.
// Requires: no dimension is negative.
std::optional<std::uint64_t> total_bits(DType dtype, std::span<const std::int64_t> shape) noexcept;

// Returns the position of an element whose name, as `name_of` gives it, also occurs earlier;
// nothing if all are different.
std::optional<std::size_t> find_duplicate(
    std::size_t count, const std::function<std::string_view(std::size_t)>& name_of);
// Throws: kStMetadata if a key occurs twice.
void refuse_twice(const std::vector<std::pair<std::string, std::string>>& metadata);

}  // namespace fsdp::formats::safetensors
