// SPDX-License-Identifier: Apache-2.0
// Writes one object with its tensors as a torch.save file that torch.load(weights_only=True) reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "formats/bytes/outputs/file.h"
#include "formats/bytes/outputs/stream.h"
#include "formats/containers/pickle/value.h"
#include "formats/containers/zip/writer.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/model/copy.h"

namespace fsdp::formats {

// Computes the layout of a file from the object alone: everything beside the storages is known,
// except the checksums.
class TorchSaveLayout {
 public:
  // Throws: what write_pickle throws.
  explicit TorchSaveLayout(const Value& root);

  std::uint64_t bytes() const { return zip_.archive_bytes(); }
  // Returns each storage that `root` refers to, once, in the order of the file.
  const std::vector<StorageRef>& storages() const { return storages_; }
  std::uint64_t storage_offset(std::size_t storage) const {
    return zip_.payload_offset(storage_records_[storage]);
  }
  std::uint64_t storage_bytes(std::size_t storage) const {
    return storages_[storage].numel * item_bytes(storages_[storage].dtype);
  }
  // Hands out everything from front to back, with adjacent parts joined.  `write_storage` is called
  // for each storage that has bytes, in its place in the order, with their offset, and returns
  // their CRC-32.
  using WriteStorage = std::function<std::uint32_t(std::size_t storage, std::uint64_t offset)>;
  void write(const WriteStorage& write_storage, const ZipWriter::WriteAt& write_at);
  // Like write, without the storages, which must be written already.
  void write_rest(std::span<const std::uint32_t> storage_crcs, const ZipWriter::WriteAt& write_at);
  // Returns the whole archive.  Requires: it has no storages.
  std::string encoded();

 private:
  struct SmallRecord {
    std::size_t number;
    std::string bytes;
  };
  void add_small(std::string_view name, std::string bytes);

  ZipWriter zip_;
  std::vector<SmallRecord> small_;
  std::vector<StorageRef> storages_;
  std::vector<std::size_t> storage_records_;
};

// Writes a file, or an item of one; the copy engine writes the payloads, checksums come last.
class TorchSaveWriter {
 public:
  // `root` may hold references to tensors (see content.h) and storages of the checkpoint's own
  // archives.  Each is written once, so aliases stay aliases. Lifetime: the checkpoint outlives the
  // writer. Throws: what write_pickle throws; kUnsupported (see storage_piece).
  TorchSaveWriter(const Checkpoint& checkpoint, const Value& root)
      : checkpoint_(checkpoint), layout_(root) {}

  std::uint64_t file_bytes() const { return layout_.bytes(); }
  // Writes the archive into `file`.  `base`: the offset of the archive in the file.  Throws: what
  // copy_pieces and OutputFile::write_at throw.
  CopyResult write(OutputFile& file, const CopyOptions& options, std::uint64_t base = 0);

 private:
  const Checkpoint& checkpoint_;
  TorchSaveLayout layout_;
};

// Copies storages into an archive whose layout is known, and writes the parts around them.

// Copies `pieces`, one for each storage of the layout, to their places in `file`, and writes the
// rest with their checksums.  `base`: the offset of the archive in the file.
//
// In a local file the rest is written at the end.  In a file that goes to a store, each part of the
// rest is written as soon as the storage before it is copied, because gaps would delay the upload.
// Throws: what copy_pieces and OutputFile::write_at throw.
CopyResult copy_archive(TorchSaveLayout& layout, std::span<const TargetPiece> pieces,
                        OutputFile& file, const CopyOptions& options, std::uint64_t base = 0);

// Writes torch.save files from front to back, from tensors in memory.

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
