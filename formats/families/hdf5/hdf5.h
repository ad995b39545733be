// SPDX-License-Identifier: Apache-2.0
// HDF5 files as checkpoints, read and written (docs/formats/hdf5.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "formats/bytes/files/file.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/content/output.h"

namespace fsdp::formats::hdf5 {

// libhdf5 reads the structure in a child process (sandbox.h); this process reads the data.
// Throws: kH5Open, kH5Link, kH5Type, kH5ReaderFailed, kUnsupported, kLimitSize, kExtent; for files
// of ours kH5Checksum, kRecordMissing, kRecordSize, and what the pickle machine throws.
std::unique_ptr<StoredCheckpoint> open_hdf5(const std::filesystem::path& path);

// Returns the pickle of the state dict that a file of ours holds beside its datasets; empty for
// other files.  Throws: like open_hdf5.
std::vector<std::byte> content_pickle(const std::shared_ptr<const File>& file);

// Writes a checkpoint as one HDF5 file (docs/formats/hdf5.md).

// Chunks of at most this size, or of one element: whole rows if rows fit.
constexpr std::uint64_t kChunkBytes = 1U << 20U;

// Returns the shape of chunks that are runs of the dense elements, all equally large but the last
// one of a row; rows are spread evenly, so that the last chunk has little padding.  Empty: no
// chunks, for tensors without elements, of rank 0, or of more than kMaxRank dimensions.
std::vector<std::int64_t> chunk_shape_for(std::span<const std::int64_t> shape,
                                          std::uint64_t item_bytes);

// `content` is the result of content_of.  libhdf5 lays the file out without its data, which then go
// to their places from several threads.  Lifetime: the source outlives the output.
// Throws: kUnsupported, what write_pickle and Checkpoint::value throw.
std::unique_ptr<Output> plan_hdf5_output(const Checkpoint& source, const Value& content,
                                         const std::filesystem::path& destination,
                                         const OutputOptions& options);

}  // namespace fsdp::formats::hdf5
