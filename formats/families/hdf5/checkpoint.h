// SPDX-License-Identifier: Apache-2.0
// An HDF5 file as a checkpoint: one of ours (docs/formats/hdf5.md), with the object it was made
// from, or any other, whose groups become dicts, datasets tensors, and plain attributes values.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <vector>

#include "formats/bytes/files/file.h"
#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats::hdf5 {

// libhdf5 reads the file in a process of its own (sandbox.h); data are read here.
// Throws: kH5Open, kH5Link, kH5Type, kH5ReaderFailed, kUnsupported, kLimitSize, kExtent; for files
// of ours kH5Checksum, kRecordMissing, kRecordSize, and what the pickle machine throws.
std::unique_ptr<Checkpoint> open_hdf5(const std::filesystem::path& path);

// Returns the pickle of the state dict that a file of ours keeps beside its datasets; empty for
// others.  Throws: like open_hdf5.
std::vector<std::byte> content_pickle(const std::shared_ptr<const File>& file);

}  // namespace fsdp::formats::hdf5
