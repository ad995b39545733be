// SPDX-License-Identifier: Apache-2.0
// The contents of an HDF5 file without its data: datasets, the places of their bytes, plain
// attributes.
//
// libhdf5 runs in a process of its own (hdf5/file.h), which sends this through a pipe; the pipe's
// output is trusted as little as the file.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "formats/bytes/base/dtype.h"
#include "formats/bytes/base/unheld.h"

namespace fsdp::formats::hdf5 {

// The group in the root that holds everything except tensors; no key of a state dict can be written
// under this name (docs/formats/hdf5.md).
inline constexpr std::string_view kHiddenGroup = ".fsdp";
// Inside it: the pickle of the whole object, and the CRC-32 of everything except data.
inline constexpr std::string_view kContentName = "content";
inline constexpr std::string_view kStructureCrcName = "structure_crc32";
inline constexpr std::string_view kStoragesName = "storages";
// The attributes of our datasets, and of the hidden group.
inline constexpr std::string_view kDTypeAttribute = "dtype";
inline constexpr std::string_view kCrcAttribute = "crc32";
inline constexpr std::string_view kNumberAttribute = "storage";
inline constexpr std::string_view kVersionAttribute = "version";
inline constexpr std::uint64_t kVersion = 1;

// The most dimensions that libhdf5 supports.
constexpr std::size_t kMaxRank = 32;
// The most chunks in the grid of one dataset: 16 TiB with chunks of 1 MiB.
constexpr std::uint64_t kMaxGridCells = 1U << 24U;
// Any file may have this many cells; a larger grid needs kLeastChunkBytes of the file for each
// cell.
constexpr std::uint64_t kFreeGridCells = 1U << 16U;
constexpr std::uint64_t kLeastChunkBytes = 4;
// The most bytes that one byte of a file can expand to: the ratio of deflate.
constexpr std::uint64_t kMaxExpansion = 1032;
// Bytes that the filter fletcher32 appends to a chunk.
constexpr std::uint64_t kFletcherBytes = 4;
// The most bytes of a chunk with filters, which are undone in memory.
constexpr std::uint64_t kMaxFilteredChunkBytes = 64U << 20U;

// Names from the root down.
using Path = std::vector<std::string>;

// Filters that we undo ourselves, by libhdf5's numbers.
enum class Filter : std::uint8_t { kDeflate = 1, kShuffle = 2, kFletcher32 = 3 };

struct StoredChunk {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;        // in the file; 0: not stored, fill value only
  std::uint32_t filter_mask = 0;  // bit i: filter i was left out
};

struct Dataset {
  enum class Storage : std::uint8_t { kFill, kContiguous, kCompact, kChunked };
  Path path;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
  Storage storage = Storage::kFill;
  std::string fill;           // one element
  std::uint64_t address = 0;  // kContiguous
  std::string data;           // kCompact
  std::vector<std::int64_t> chunk_shape;
  std::vector<Filter> filters;          // in the order they were applied
  std::vector<StoredChunk> chunks;      // of the whole grid, row-major
  std::optional<std::uint32_t> crc;     // of the dense elements
  std::optional<std::uint64_t> number;  // the storage key in the pickle of the object

  std::uint64_t numel() const;
  std::uint64_t bytes() const { return numel() * item_bytes(dtype); }
  // Bytes of one chunk without its filters.
  std::uint64_t chunk_bytes() const;
};

using Scalar = std::variant<bool, std::int64_t, std::uint64_t, double, std::string, Unheld>;

// A plain attribute of a group.
struct Attribute {
  Path path;  // of the group, then the attribute's name
  bool is_list = false;
  std::vector<Scalar> items;  // one if it is not a list; none at all: an empty attribute
};

struct LeftOut {
  Path path;
  std::string what;  // "attribute 'scale' of type reference"
};

struct Description {
  std::vector<Dataset> datasets;
  std::vector<Attribute> attributes;
  std::vector<Path> empty_groups;
  std::vector<LeftOut> left_out;
};

// Returns the name of an object for messages, escaped: "/model/layers.0.weight".
std::string path_text(const Path& path);

// Chunks that are runs of the dense row-major elements.  Each `group` chunks hold `group_bytes`.
// Inside a group each chunk begins `run_bytes` after the one before it; the last may be shorter.
struct ChunkRuns {
  std::uint64_t run_bytes = 0;
  std::uint64_t group_bytes = 0;
  std::uint64_t group = 1;
  // The place of chunk c in the dense elements, and the number of its bytes that are elements.
  std::uint64_t begin(std::uint64_t c) const {
    return c / group * group_bytes + c % group * run_bytes;
  }
  std::uint64_t bytes(std::uint64_t c) const {
    const std::uint64_t left = group_bytes - c % group * run_bytes;
    return left < run_bytes ? left : run_bytes;
  }
  // The chunk that holds byte `at` of the dense elements.
  std::uint64_t chunk(std::uint64_t at) const {
    return at / group_bytes * group + at % group_bytes / run_bytes;
  }
};
// Returns nothing if the chunks are not runs.  Requires: a dataset with elements, whose chunks have
// its rank.
std::optional<ChunkRuns> runs_of(const Dataset& dataset);

struct Extent {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};
// Returns the ranges of the file that hold data, in order.  A dataset with several names counts
// once.
std::vector<Extent> data_extents(std::span<const Dataset> datasets);
// Returns the gaps between `data` in a file of `file_bytes` bytes: the structure.
// Throws: kExtentOverlap if two ranges of data share bytes.
std::vector<Extent> structure_extents(std::span<const Extent> data, std::uint64_t file_bytes);

// Moves `at`, the beginning of a chunk, to the next chunk of the grid, row-major.  Returns false,
// and moves to the first one, if it was the last.
template <typename T>
bool next_chunk(const Dataset& dataset, std::vector<T>& at) {
  for (std::size_t d = at.size(); d-- > 0;) {
    at[d] += static_cast<T>(dataset.chunk_shape[d]);
    if (at[d] < static_cast<T>(dataset.shape[d])) return true;
    at[d] = 0;
  }
  return false;
}
// Returns the number of chunks along each dimension.
std::vector<std::int64_t> grid_of(const Dataset& dataset);
// Throws: kLimitSize if the dataset claims more than a file of `file_bytes` bytes can expand to, or
// more chunks than kMaxGridCells; kOverflow.
void check_claim(const Dataset& dataset, std::uint64_t file_bytes);

std::string encode(const Description& description);
// Throws: kH5ReaderFailed if the description is not sound; kExtent if bytes lie outside a file of
// `file_bytes` bytes; what check_claim throws.
Description decode(std::span<const std::byte> bytes, std::uint64_t file_bytes);

}  // namespace fsdp::formats::hdf5
