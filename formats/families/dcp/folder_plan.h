// SPDX-License-Identifier: Apache-2.0
// The items of a torch.distributed.checkpoint folder that is about to be written: the rank's file
// and the byte offset of each.  Positions of chunks are computed, not stored: a folder of thousands
// of ranks has millions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "formats/containers/pickle/value.h"
#include "formats/families/dcp/metadata_writer.h"
#include "formats/families/dcp/names.h"
#include "formats/state/content/state_tree.h"
#include "formats/state/model/shard_spec.h"

namespace fsdp::formats::dcp {

struct ValueItem {
  std::size_t entry;  // in FolderPlan::entries
  std::int64_t rank;
  std::uint64_t offset;
  std::uint64_t bytes;
  std::string encoded;  // the whole item; empty if it is encoded while it is written
};

// One chunk of a tensor, as an item of a rank's file.
struct ChunkItem {
  std::int64_t number;  // within the tensor
  std::int64_t part;    // part of the sharding that it belongs to
  std::int64_t rank;
  const Box& box;
  std::uint64_t bytes;  // of the item
};

// A box of a tensor that is cut into rows of its own.
struct TensorBlock {
  Box box;
  std::size_t row_dims = 1;  // its leading dimensions that make up the rows
};

struct TensorItem {
  std::size_t entry;
  std::size_t tensor;               // the number in the entry's value
  DType dtype;                      // as written
  std::vector<std::int64_t> shape;  // of the whole tensor
  bool cut;
  RowCut rows;               // cut
  std::size_t row_dims = 1;  // cut: the leading dimensions that make up its rows
  // cut: if not empty, the tensor consists of these blocks instead of `rows`.  Parts are numbered
  // block by block; `writers` must be set.
  std::vector<TensorBlock> blocks;
  std::int64_t rank;  // not cut: where it is stored
  std::shared_ptr<const std::vector<std::int64_t>>
      writers;  // cut: of each part; if null, part p is written by rank p

  // Calls `visit` with a ChunkItem for each chunk: parts in order, and within a part its boxes in
  // the order of their elements.  Requires: measure().
  template <typename Visit>
  void for_each_chunk(const Visit& visit) const;
  // Computes the sizes of the tensor's items.
  void measure();
  // Returns the number of elements of a part.
  std::uint64_t numel_of(std::int64_t part) const;

 private:
  bool parts_are_boxes() const { return !cut || (row_dims <= 1 && blocks.empty()); }
  std::int64_t parts_of_a_block() const {
    return static_cast<std::int64_t>(writers->size() / blocks.size());
  }
  RowCut rows_of(const TensorBlock& block) const;
  // Returns the boxes of a part that consists of several, in the order of their elements.
  std::vector<Box> boxes_of(std::int64_t part) const;
  std::int64_t part_count() const {
    if (!blocks.empty()) return static_cast<std::int64_t>(writers->size());
    return cut ? rows.ranks_with_rows : 1;
  }
  std::int64_t rank_of(std::int64_t part) const {
    if (!cut) return rank;
    return writers ? (*writers)[static_cast<std::size_t>(part)] : part;
  }
  std::uint64_t bytes_of(std::int64_t part, const Box& box) const;

  std::uint64_t bytes_;       // if parts are boxes: bytes of the items of all parts but the last
  std::uint64_t last_bytes_;  // and of the last part's item
  // If parts are not boxes: bytes of an item by the size of its box.  There are few different
  // sizes.
  std::vector<std::pair<std::vector<std::int64_t>, std::uint64_t>> bytes_of_sizes_;
};

template <typename Visit>
void TensorItem::for_each_chunk(const Visit& visit) const {
  std::int64_t number = 0;
  const auto add = [&](std::int64_t part, const Box& box) {
    visit(ChunkItem{number++, part, rank_of(part), box, bytes_of(part, box)});
  };
  Box box = whole_box(shape);
  for (std::int64_t part = 0; part < part_count(); ++part) {
    if (parts_are_boxes()) {
      if (cut) {
        box.offset[0] = rows.begin(part);
        box.size[0] = rows.count(part);
      }
      add(part, box);
      continue;
    }
    for (const Box& one : boxes_of(part)) add(part, one);
  }
}

// Returns the object of a chunk's item: a dense tensor of its shape over one storage.
Value chunk_object(DType dtype, const std::vector<std::int64_t>& shape);

// Every rank's file: values first, then tensors in the order of the entries, one after another.
class FolderPlan {
 public:
  std::int64_t world_size() const { return world_size_; }
  const std::vector<Leaf>& entries() const { return entries_; }
  const std::vector<ValueItem>& values() const { return values_; }
  // In the order of their items in every file, which is that of the entries.
  const std::vector<TensorItem>& tensors() const { return tensors_; }
  std::uint64_t file_bytes(std::int64_t rank) const {
    return file_bytes_[static_cast<std::size_t>(rank)];
  }

  // Returns the name of a rank's file.
  std::string file_name(std::int64_t rank) const { return data_file_name(rank, file_number_); }
  // Sets the number in the names of all files, which else is 0.
  void number_files(std::int64_t number) { file_number_ = number; }

  // Computes the places of tensors' items: the offset of each rank's next item.
  class Cursor {
   public:
    explicit Cursor(const FolderPlan& items) : ends_(items.value_bytes_) {}
    // Returns the offset of the rank's next item, which has `bytes` bytes.
    std::uint64_t next(std::int64_t rank, std::uint64_t bytes);

   private:
    std::vector<std::uint64_t> ends_;
  };

  void write_metadata(const MetadataWriter::Sink& sink) const;

 protected:
  explicit FolderPlan(std::int64_t world_size) : world_size_(world_size) {}
  // Adds the item of a value that is written as it is.  `encode`: keeps the encoding if there is
  // room.
  void add_value(std::size_t entry, const Value& value, bool encode);
  // Computes offsets and sizes of files, once all items have their ranks.
  void place_items();

  std::int64_t world_size_;
  std::vector<Leaf> entries_;
  std::vector<ValueItem> values_;
  std::vector<TensorItem> tensors_;

 private:
  std::int64_t file_number_ = 0;
  std::uint64_t encoded_bytes_ = 0;
  std::vector<std::uint64_t> value_bytes_;  // end of the values in each rank's file
  std::vector<std::uint64_t> file_bytes_;
};

// Decides which rank stores the entries that every rank has.
// Source: torch/distributed/checkpoint/_dedup_save_plans.py of PyTorch 2.3 to 2.15.

// DCP goes through the entries in rank 0's order.  It gives each entry that all ranks have to the
// rank with the least load so far; of several such ranks, to the lowest.  A tensor counts with all
// its bytes, sharded or not, anything else with 1.  Of sharded tensors, only rank 0's parts count:
// the others come after the last decision.
class Balance {
 public:
  // Requires: world_size >= 1.
  explicit Balance(std::int64_t world_size);
  // Adds a sharded entry.  `bytes`: of the whole tensor.
  void add_cut(std::uint64_t bytes) { first_ += bytes == 0 ? 1 : bytes; }
  // Adds an entry that all ranks have and returns the rank that stores it.  `bytes`: 0 if it is not
  // a tensor.
  std::int64_t place(std::uint64_t bytes);

 private:
  using Load = std::pair<std::uint64_t, std::int64_t>;  // bytes, rank
  std::uint64_t first_ = 0;                             // of rank 0
  std::priority_queue<Load, std::vector<Load>, std::greater<>> others_;
};

}  // namespace fsdp::formats::dcp
