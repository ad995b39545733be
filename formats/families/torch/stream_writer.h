// SPDX-License-Identifier: Apache-2.0
// Writes torch.save files from front to back, from tensors in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "formats/bytes/outputs/file.h"
#include "formats/bytes/outputs/stream.h"
#include "formats/containers/pickle/value.h"
#include "formats/families/torch/writer.h"

namespace fsdp::formats {

// Returns the bytes of a storage, row-major.  Lifetime: until the next call.
using StorageBytes = std::function<std::span<const std::byte>(const StorageRef&)>;
// Returns the bytes of tensor `number` of a list.  Lifetime: until the next call.
using TensorBytes = std::function<std::span<const std::byte>(std::size_t number)>;

// Throws: kShape naming the file, if `found`, the bytes of a tensor, differs from `wanted`.
void check_tensor_bytes(const OutputStream& out, std::uint64_t wanted, std::uint64_t found);

// Appends an archive.
// Throws: kNoSpace, kIo; what `bytes_of` throws; kShape if it returns another number of bytes than
// the storage has.
void write_archive(OutputStream& out, TorchSaveLayout& layout, const StorageBytes& bytes_of);

// Reserves space and writes `root`, whose tensors are references to whole tensors, as a torch.save
// file; does not finish the file.  `use`: see OutputStream.
// Throws: what write_archive and write_pickle throw.
void write_torch_file(OutputFile& file, const Value& root, const TensorBytes& bytes, CacheUse use);

}  // namespace fsdp::formats
