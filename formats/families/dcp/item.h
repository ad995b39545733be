// SPDX-License-Identifier: Apache-2.0
// One item of a data file: the byte range a chunk or a value is stored in.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/bytes/files/file.h"
#include "formats/families/safetensors/file.h"
#include "formats/families/torch/stream.h"
#include "formats/state/checkpoint/spill.h"
#include "formats/state/model/index.h"

namespace fsdp::formats::dcp {

// An item, opened: a torch.save stream, or a tensor of a safetensors blob that several items share.
struct Item {
  StreamPlace place;  // of the stream or the blob
  std::shared_ptr<const ByteSource>
      stream;       // the item's bytes alone, decompressed; null for safetensors
  TorchFile torch;  // if `stream` is set
  std::optional<safetensors::Tensor>
      tensor;  // otherwise; positions count from the start of the file
};

// Reads the bytes that `location` names, with transforms undone: `place` and `stream` of an item.
// Throws: kExtent, kUnsupported (an unknown transform), the errors of decompressing.
Item item_bytes(const std::shared_ptr<const File>& file, const Location& location,
                const std::vector<std::string>& transforms, Spill& spill);

// Opens the item that `location` names.  `key` picks the tensor of a safetensors blob; `archive` is
// put into storage references.  Messages begin with file and key.
// Throws: kExtent, kUnsupported (an unknown transform), kZipEocd if the bytes are neither; the
// errors of read_torch_file and safetensors::read_header.
Item open_item(const std::shared_ptr<const File>& file, const Location& location,
               const std::vector<std::string>& transforms, const std::string& key,
               std::uint64_t archive, Spill& spill);

// Hint: open_item() follows for this item, and then bytes [begin, end) of its elements are read;
// UINT64_MAX: to the last one.  The ends of the item may be fetched from the disk, and ends and
// elements from a store.  Returns whether more hints are worth giving.
bool expect_item(const File& file, const Location& location, std::uint64_t begin = 0,
                 std::uint64_t end = UINT64_MAX) noexcept;

// Locates the elements of the chunk that the item holds.
// `dtype` and `shape` of the chunk come from the metadata.
// Throws: kDtype, kShape, kUnsupported (quantized, sparse, ...), kType if the item holds no tensor.
ChunkData item_tensor(const Item& item, const std::string& key, DType dtype,
                      std::span<const std::int64_t> shape, Spill& spill);

}  // namespace fsdp::formats::dcp
