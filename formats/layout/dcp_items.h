// SPDX-License-Identifier: Apache-2.0
// The items of a torch.distributed.checkpoint folder that is about to be written: which one in
// which rank's file at which byte.  Positions of chunks are counted out, not kept: a folder of
// thousands of ranks has millions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "formats/container/pickle_value.h"
#include "formats/layout/dcp_metadata_writer.h"
#include "formats/layout/state_tree.h"
#include "formats/model/shard_spec.h"

namespace fsdp::formats::dcp {

struct ValueItem {
  std::size_t entry;  // in FolderItems::entries
  std::int64_t rank;
  std::uint64_t offset;
  std::uint64_t bytes;
  std::string encoded;  // the whole item; empty where it is made when it is written
};

struct TensorItem {
  std::size_t entry;
  std::size_t tensor;               // the number that the entry's value refers to
  DType dtype;                      // as written
  std::vector<std::int64_t> shape;  // of the whole tensor
  bool cut;
  RowCut rows;        // cut: of dimension 0
  std::int64_t rank;  // not cut: where it is stored
  std::shared_ptr<const std::vector<std::int64_t>>
      writers;               // cut: of each part; null: rank p's is p
  std::uint64_t bytes;       // see measure()
  std::uint64_t last_bytes;  // cut: of the item of the last rank that has one

  std::int64_t chunk_count() const { return cut ? rows.ranks_with_rows : 1; }
  std::int64_t rank_of(std::int64_t chunk) const {
    if (!cut) return rank;
    return writers ? (*writers)[static_cast<std::size_t>(chunk)] : chunk;
  }
  std::uint64_t bytes_of(std::int64_t chunk) const {
    return chunk + 1 == chunk_count() ? last_bytes : bytes;
  }
  Box box_of(std::int64_t chunk) const {
    return cut ? shard_box(shape, rows, chunk) : whole_box(shape);
  }
  // Counts the bytes of its items.
  void measure();
};

// The object of a chunk's item: a dense tensor of its shape over one storage.
Value chunk_object(DType dtype, const std::vector<std::int64_t>& shape);

// Every rank's file: values first, then tensors in the order of the entries, one behind the other.
class FolderItems {
 public:
  std::int64_t world_size() const { return world_size_; }
  const std::vector<Leaf>& entries() const { return entries_; }
  const std::vector<ValueItem>& values() const { return values_; }
  // In the order of their items in every file: that of the entries.
  const std::vector<TensorItem>& tensors() const { return tensors_; }
  std::uint64_t file_bytes(std::int64_t rank) const {
    return file_bytes_[static_cast<std::size_t>(rank)];
  }

  // Counts out the items of tensors: where the next item of each rank goes.
  class Cursor {
   public:
    explicit Cursor(const FolderItems& items) : ends_(items.value_bytes_) {}
    // The offset of the rank's next item, of that many bytes.
    std::uint64_t next(std::int64_t rank, std::uint64_t bytes);

   private:
    std::vector<std::uint64_t> ends_;
  };

  void write_metadata(const MetadataWriter::Sink& sink) const;

 protected:
  explicit FolderItems(std::int64_t world_size) : world_size_(world_size) {}
  // The item of a value that is written as it is.  `encode`: what it is written as is kept, as far
  // as there is room.
  void add_value(std::size_t entry, const Value& value, bool encode);
  // Counts out offsets and sizes of files, once all items have their ranks.
  void place_items();

  std::int64_t world_size_;
  std::vector<Leaf> entries_;
  std::vector<ValueItem> values_;
  std::vector<TensorItem> tensors_;

 private:
  std::uint64_t encoded_bytes_ = 0;
  std::vector<std::uint64_t> value_bytes_;  // where the values of each rank's file end
  std::vector<std::uint64_t> file_bytes_;
};

}  // namespace fsdp::formats::dcp
