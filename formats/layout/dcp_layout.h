// SPDX-License-Identifier: Apache-2.0
// Where everything goes in a torch.distributed.checkpoint folder that is about to be written: which
// item in which rank's file at which byte.  Positions of chunks are counted out, not kept: a folder
// of thousands of ranks has millions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "formats/container/pickle_value.h"
#include "formats/layout/checkpoint.h"
#include "formats/layout/dcp_metadata_writer.h"
#include "formats/layout/dcp_sharding.h"
#include "formats/model/shard_spec.h"

namespace fsdp::formats::dcp {

// Called for each value once it was read; may throw to refuse it.
using ValueCheck = std::function<void(const std::string& key, const Value& value)>;

struct ValueItem {
  std::size_t entry;  // in FolderLayout::entries
  std::int64_t rank;
  std::uint64_t offset;
  std::uint64_t bytes;
  std::string encoded;  // the whole item; empty where it is made when it is written
};

struct TensorItem {
  std::size_t entry;
  std::size_t tensor;  // in the source's index
  DType dtype;         // as written
  bool cut;
  RowCut rows;        // cut: of dimension 0
  std::int64_t rank;  // not cut: where it is stored
  std::uint64_t bytes;
  std::uint64_t last_bytes;  // cut: of the item of the last rank that has one

  std::int64_t chunk_count() const { return cut ? rows.ranks_with_rows : 1; }
  std::int64_t rank_of(std::int64_t chunk) const { return cut ? chunk : rank; }
  std::uint64_t bytes_of(std::int64_t chunk) const {
    return chunk + 1 == chunk_count() ? last_bytes : bytes;
  }
  Box box_of(std::span<const std::int64_t> shape, std::int64_t chunk) const {
    return cut ? shard_box(shape, rows, chunk) : whole_box(shape);
  }
};

// The object of a chunk's item: a dense tensor of its shape over one storage.
Value chunk_object(DType dtype, const std::vector<std::int64_t>& shape);

class FolderLayout {
 public:
  // Lifetime: the source outlives the layout.  Throws: as plan_dcp_output.
  FolderLayout(const Checkpoint& source, const Value& content, std::int64_t world_size,
               const ShardingChoice& choice, const ValueCheck& on_value);

  std::int64_t world_size() const { return world_size_; }
  const std::vector<Leaf>& entries() const { return entries_; }
  const std::vector<ValueItem>& values() const { return values_; }
  // In the order of their items in every file: that of the entries.
  const std::vector<TensorItem>& tensors() const { return tensors_; }
  // What Lightning's meta.pt holds, key by key; nothing for other folders.
  const std::vector<Value::Entry>& lightning_meta() const { return lightning_meta_; }
  bool is_lightning() const { return lightning_; }
  std::uint64_t file_bytes(std::int64_t rank) const {
    return file_bytes_[static_cast<std::size_t>(rank)];
  }

  // Counts out the items of tensors: where the next item of each rank goes.
  class Cursor {
   public:
    explicit Cursor(const FolderLayout& layout) : ends_(layout.value_bytes_) {}
    // The offset of the rank's next item, of that many bytes.
    std::uint64_t next(std::int64_t rank, std::uint64_t bytes);

   private:
    std::vector<std::uint64_t> ends_;
  };

  void write_metadata(const MetadataWriter::Sink& sink) const;

 private:
  void add_value(std::size_t entry, const ValueCheck& on_value);
  void add_tensor(std::size_t entry, const ShardingRule& rule);
  void place_items();
  bool is_lightning_meta(const Leaf& entry) const;

  const Checkpoint& source_;
  std::int64_t world_size_;
  bool lightning_ = false;
  std::vector<Leaf> entries_;
  std::vector<ValueItem> values_;
  std::vector<TensorItem> tensors_;
  std::vector<Value::Entry> lightning_meta_;
  std::uint64_t encoded_bytes_ = 0;
  std::vector<std::uint64_t> value_bytes_;  // where the values of each rank's file end
  std::vector<std::uint64_t> file_bytes_;
};

}  // namespace fsdp::formats::dcp
