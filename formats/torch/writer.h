// SPDX-License-Identifier: Apache-2.0
// Writes one object with its tensors as a torch.save file that torch.load(weights_only=True) reads.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "formats/files/output_file.h"
#include "formats/model/copy.h"
#include "formats/pickle/value.h"
#include "formats/zip/writer.h"

namespace fsdp::formats {

// Where everything of a file goes, from the object alone: what stands beside the storages is known
// but for their checksums.
class TorchSaveLayout {
 public:
  // Throws: what write_pickle throws.
  explicit TorchSaveLayout(const Value& root);

  std::uint64_t bytes() const { return zip_.archive_bytes(); }
  // Each storage that `root` refers to, once, in the order of the file.
  const std::vector<StorageRef>& storages() const { return storages_; }
  // Where the first byte of a storage goes.
  std::uint64_t storage_offset(std::size_t storage) const {
    return zip_.payload_offset(storage_records_[storage]);
  }
  // Hands out everything from front to back, what is adjacent as one.  `write_storage` is called in
  // its place for each storage that has bytes, with where they begin, and returns their CRC-32.
  using WriteStorage = std::function<std::uint32_t(std::size_t storage, std::uint64_t offset)>;
  void write(const WriteStorage& write_storage, const ZipWriter::WriteAt& write_at);
  // The same without the storages, when those were written already.
  void write_rest(std::span<const std::uint32_t> storage_crcs, const ZipWriter::WriteAt& write_at);

 private:
  struct SmallRecord {
    std::size_t number;
    std::string bytes;
  };
  void add_small(std::string_view name, std::string bytes);
  std::uint64_t storage_bytes(std::size_t storage) const {
    return storages_[storage].numel * item_bytes(storages_[storage].dtype);
  }

  ZipWriter zip_;
  std::vector<SmallRecord> small_;
  std::vector<StorageRef> storages_;
  std::vector<std::size_t> storage_records_;
};

// A file, or an item of one; payloads follow by the copy engine, checksums last.
class TorchSaveWriter {
 public:
  // `root` may hold references to tensors (see content.h) and storages of the checkpoint's own
  // archives; each one referred to is written once, so aliases stay aliases. Lifetime: the
  // checkpoint outlives the writer. Throws: what write_pickle throws; kUnsupported (see
  // storage_piece).
  TorchSaveWriter(const Checkpoint& checkpoint, const Value& root)
      : checkpoint_(checkpoint), layout_(root) {}

  std::uint64_t file_bytes() const { return layout_.bytes(); }
  // One piece a storage, in file order.  `base`: where in the file the archive begins.
  std::vector<TargetPiece> pieces(OutputFile& file, std::uint64_t base = 0) const;
  // Writes everything that is no storage.  `crcs` are those of the pieces.
  void finish(OutputFile& file, std::span<const std::uint32_t> crcs, std::uint64_t base = 0);

 private:
  const Checkpoint& checkpoint_;
  TorchSaveLayout layout_;
};

}  // namespace fsdp::formats
