// SPDX-License-Identifier: Apache-2.0
// HDF5 files by libhdf5: describes the contents of a file, and lays out a file to be written.  The
// library reads no data and writes no file; if it is missing, hdf5/file_disabled.cpp reports that.
// Source: HDF5 File Format Specification 3.0; libhdf5 1.10 and 1.14.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/bytes/base/byte_source.h"
#include "formats/bytes/files/file.h"
#include "formats/families/hdf5/description.h"

namespace fsdp::formats::hdf5 {

// Walks a file in this process.  Only for trusted files, and for the process that
// `read_description` starts.
// Throws: kH5Open, kH5Link, kH5Type, kH5ReaderFailed (out of memory), kUnsupported (filters),
// kLimitSize, kLimitDepth, kLimitNodes, kUtf8.
Description describe(const ByteSource& file);

struct ReaderLimits {
  std::uint64_t memory_bytes = 1U << 30U;  // beyond the memory that this process has mapped
  unsigned cpu_seconds = 30;
  unsigned wall_seconds = 120;
};

// Describes a file that need not be trusted: libhdf5 runs in a child process that can read the open
// file, write to one pipe, and nothing else (hdf5/sandbox.h).
// Throws: like describe and decode; kH5ReaderFailed if the child dies or exceeds its limits.
Description read_description(const File& file, const ReaderLimits& limits = {});

// A file to be written.
struct PlannedDataset {
  Path path;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;        // at most kMaxRank dimensions
  std::vector<std::int64_t> chunk_shape;  // empty: contiguous, without a checksum of its own
  std::optional<std::uint32_t> crc;
  std::optional<std::uint64_t> number;

  // Returns the dataset without its place.
  Dataset described() const {
    Dataset out;
    out.dtype = dtype;
    out.shape = shape;
    out.chunk_shape = chunk_shape;
    return out;
  }
};
struct PlannedLink {
  Path path;
  std::size_t dataset = 0;  // the dataset that the link names
};
struct PlannedText {
  Path path;  // of the group, then the attribute's name
  std::string text;
};
struct FilePlan {
  std::vector<PlannedDataset> datasets;
  std::vector<PlannedLink> links;
  std::vector<PlannedText> texts;
};

// The place of a dataset in the file.
struct DatasetPlace {
  std::uint64_t address = 0;          // contiguous
  std::vector<std::uint64_t> chunks;  // addresses, in the order of the grid
};
struct FileImage {
  std::uint64_t bytes = 0;                                       // of the whole file
  std::vector<DatasetPlace> places;                              // of the plan's datasets
  std::vector<std::pair<std::uint64_t, std::string>> structure;  // all bytes except data
};

// Runs libhdf5 on a file that is kept in memory without its data.  The same plan gives the same
// image; CRCs do not change places.
// Throws: kUnsupported if libhdf5 refuses, with its message.
FileImage lay_out(const FilePlan& plan);

}  // namespace fsdp::formats::hdf5
