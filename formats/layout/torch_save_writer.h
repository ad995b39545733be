// SPDX-License-Identifier: Apache-2.0
// Writes one object with its tensors as a torch.save file that torch.load(weights_only=True) reads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "formats/base/atomic_output.h"
#include "formats/container/pickle_value.h"
#include "formats/container/zip_writer.h"
#include "formats/layout/checkpoint.h"
#include "formats/model/copy.h"

namespace fsdp::formats {

// Lays the file out from the object alone; payloads follow by the copy engine, checksums last.
class TorchSaveWriter {
 public:
  // `root` may hold kTensorArchive storages (see state_tree.h) and storages of the checkpoint's own
  // archives; each one referred to is written once, so aliases stay aliases. Lifetime: the
  // checkpoint outlives the writer. Throws: what write_pickle throws; kUnsupported (see
  // storage_piece).
  TorchSaveWriter(const Checkpoint& checkpoint, const Value& root);

  std::uint64_t file_bytes() const { return zip_.archive_bytes(); }
  // One piece a storage, in file order.
  std::vector<TargetPiece> pieces(OutputFile& file) const;
  // Writes everything that is no storage.  `crcs` are those of the pieces.
  void finish(OutputFile& file, std::span<const std::uint32_t> crcs);

 private:
  struct SmallRecord {
    std::size_t number;
    std::string bytes;
  };
  void add_small(std::string_view name, std::string bytes);

  const Checkpoint& checkpoint_;
  ZipWriter zip_;
  std::vector<SmallRecord> small_;
  std::vector<StorageRef> storages_;
  std::vector<std::size_t> storage_records_;
};

}  // namespace fsdp::formats
