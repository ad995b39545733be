// SPDX-License-Identifier: Apache-2.0
// The place of one chunk's elements, ready to be read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/bytes/base/byte_source.h"
#include "formats/bytes/base/dtype.h"
#include "formats/bytes/base/error.h"

namespace fsdp::formats {

// The elements of a chunk inside a storage: a run of bytes that may carry a checksum and may hold
// more than the chunk.  Element i of the chunk is element first + sum(i[d] * strides[d]) of the
// storage.
struct ChunkData {
  std::shared_ptr<const ByteSource> source;
  std::string file;                  // name for messages
  std::uint64_t storage_offset = 0;  // of the storage's first byte, in `source`
  std::uint64_t storage_bytes = 0;
  std::uint64_t file_offset =
      0;  // of the storage's first byte in the file it came from, for messages
  std::optional<std::uint32_t> crc;         // CRC-32 of the storage, if the format keeps one
  ErrorCode mismatch = ErrorCode::kZipCrc;  // code of the error if data do not match it
  bool self_checked = false;                // `source` itself compares a checksum while it is read
  DType dtype = DType::kFloat32;
  std::uint64_t first = 0;
  std::vector<std::int64_t> strides;  // in elements, not negative; empty: dense row-major
  bool swap_bytes = false;            // elements are big-endian
  bool conjugate = false;             // the tensor is the complex conjugate of the stored one
  bool negate = false;                // the tensor is the negative of the stored one

  // Returns whether elements are changed on the way, not only moved.
  bool transformed() const { return swap_bytes || conjugate || negate; }
};

// Applies the changes that `data` asks for to `elements` in place: byte swap, conjugation,
// negation.
void transform_elements(const ChunkData& data, std::span<std::byte> elements);

// Returns whether two chunks of one size hold the same bytes: by their CRCs if each CRC is of the
// chunk alone, else by reading both.  Throws: kChanged, kIo.
bool same_elements(const ChunkData& a, const ChunkData& b, std::span<const std::int64_t> size);

// Reads a sub-box of a chunk into `out`, laid out with `out_strides` (in elements, from out[0]).
//
// `size` is the sub-box, `begin` where it starts within the chunk, `chunk_size` the chunk's own
// size.  Bytes are read in few large pieces through `scratch`, never more than scratch holds at
// once; elements come as stored (transform_elements not applied).  Returns the byte range of the
// storage that was read if it was one dense run without gaps, so that its CRC can be used.
// Requires: the elements lie inside the storage (checked when the chunk was located).
// Throws: kChanged, kIo.
struct DenseRun {
  std::uint64_t begin = 0;  // from the start of the storage
  std::uint64_t bytes = 0;
  std::uint32_t crc = 0;
};
std::optional<DenseRun> gather(const ChunkData& data, std::span<const std::int64_t> chunk_size,
                               std::span<const std::int64_t> begin,
                               std::span<const std::int64_t> size, std::span<std::byte> out,
                               std::span<const std::int64_t> out_strides,
                               std::span<std::byte> scratch);

}  // namespace fsdp::formats
