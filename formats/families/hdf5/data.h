// SPDX-License-Identifier: Apache-2.0
// The elements of HDF5 datasets as sources of bytes, read and checked by our own code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "formats/bytes/base/byte_source.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/files/file.h"
#include "formats/families/hdf5/description.h"
#include "formats/state/checkpoint/spill.h"
#include "formats/state/model/chunk_data.h"

namespace fsdp::formats::hdf5 {

// Throws: kH5Open (no signature at byte 0, which a user block shifts), kEmpty.
void check_signature(const File& file);
// Returns whether there is an HDF5 signature at byte 0, 512, 1024, 2048, ...
bool looks_like_hdf5(const ByteSource& source);

// Returns one chunk of the grid.  A chunk with fletcher32 only is compared with its checksum before
// any byte of it is returned; one with other filters is undone at its first read, into `spill`.
// Lifetime: dataset and spill outlive the result.
// Throws when it is read: what undo_filters throws, with the file and dataset in front.
ChunkData chunk_data(const std::shared_ptr<const File>& file, const Dataset& dataset,
                     std::size_t chunk, Spill& spill);
// Returns the data of a dataset that is not chunked.
ChunkData whole_data(const std::shared_ptr<const File>& file, const Dataset& dataset);
// Returns the data of a dataset of ours as one run of bytes, with its CRC-32.  Returns nothing if a
// chunked dataset has no CRC-32, chunks that are not runs, chunks that are not stored, or filters
// besides fletcher32.
std::optional<ChunkData> dense_data(const std::shared_ptr<const File>& file,
                                    const Dataset& dataset);

// Returns the CRC-32 of everything in the file except data.  Throws: kExtentOverlap.
std::uint32_t structure_crc(const ByteSource& file, std::span<const Dataset> datasets);

// Reads all data of a dataset and compares every checksum; `bad` receives each mismatch.  Returns
// the bytes with a checksum, and those without.
struct CheckedBytes {
  std::uint64_t checked = 0;
  std::uint64_t unchecked = 0;
};
CheckedBytes check_data(const File& file, const Dataset& dataset, std::span<std::byte> buffer,
                        const std::function<void(const Error&, Extent)>& bad);

}  // namespace fsdp::formats::hdf5
