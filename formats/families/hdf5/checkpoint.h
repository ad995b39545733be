// SPDX-License-Identifier: Apache-2.0
// An HDF5 file as a checkpoint.  A file of ours (docs/formats/hdf5.md) holds the object that it was
// made from.  In any other file groups become dicts, datasets tensors, and plain attributes values.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <vector>

#include "formats/bytes/files/file.h"
#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats::hdf5 {

// libhdf5 reads the structure in a child process (sandbox.h); this process reads the data.
// Throws: kH5Open, kH5Link, kH5Type, kH5ReaderFailed, kUnsupported, kLimitSize, kExtent; for files
// of ours kH5Checksum, kRecordMissing, kRecordSize, and what the pickle machine throws.
std::unique_ptr<Checkpoint> open_hdf5(const std::filesystem::path& path);

// Returns the pickle of the state dict that a file of ours holds beside its datasets; empty for
// other files.  Throws: like open_hdf5.
std::vector<std::byte> content_pickle(const std::shared_ptr<const File>& file);

}  // namespace fsdp::formats::hdf5
