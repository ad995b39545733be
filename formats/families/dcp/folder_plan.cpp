// SPDX-License-Identifier: Apache-2.0
#include "formats/families/dcp/folder_plan.h"

#include <algorithm>
#include <utility>

#include "formats/bytes/base/checked_math.h"
#include "formats/families/torch/writer.h"
#include "formats/state/content/tensor_value.h"

namespace fsdp::formats::dcp {
namespace {

// Encoded values kept between planning and writing; further ones are read and encoded again.
constexpr std::uint64_t kMaxEncodedBytes = 24U << 20U;

}  // namespace

Value chunk_object(DType dtype, const std::vector<std::int64_t>& shape) {
  StorageRef storage;
  storage.tensor = TensorRef{};
  const std::uint64_t numel = checked_numel(shape, "a chunk");
  storage.numel = storage_class(dtype).empty() ? numel * item_bytes(dtype) : numel;
  return make_dense_tensor(dtype, shape, std::move(storage));
}

void TensorItem::measure() {
  const auto item_bytes_of = [&](const Box& box) {
    return TorchSaveLayout(chunk_object(dtype, box.size)).bytes();
  };
  if (parts_are_boxes()) {
    const auto box_of = [&](std::int64_t part) {
      return cut ? shard_box(shape, rows, part) : whole_box(shape);
    };
    bytes_ = item_bytes_of(box_of(0));
    last_bytes_ = part_count() > 1 ? item_bytes_of(box_of(part_count() - 1)) : bytes_;
    return;
  }
  bytes_of_sizes_.clear();
  for (std::int64_t part = 0; part < part_count(); ++part) {
    for (const Box& box : boxes_of(part)) {
      const bool known = std::ranges::any_of(
          bytes_of_sizes_, [&](const auto& size) { return size.first == box.size; });
      if (!known) bytes_of_sizes_.emplace_back(box.size, item_bytes_of(box));
    }
  }
}

RowCut TensorItem::rows_of(const TensorBlock& block) const {
  return cut_rows(count_rows(block.box.size, block.row_dims), parts_of_a_block());
}

std::vector<Box> TensorItem::boxes_of(std::int64_t part) const {
  if (blocks.empty()) return boxes_of_rows(shape, row_dims, rows.begin(part), rows.count(part));
  const TensorBlock& block = blocks[static_cast<std::size_t>(part / parts_of_a_block())];
  if (volume(block.box.view()) == 0) return {};
  const RowCut own_rows = rows_of(block);
  const std::int64_t own = part % parts_of_a_block();
  if (own_rows.count(own) == 0) return {};
  auto boxes =
      boxes_of_rows(block.box.size, block.row_dims, own_rows.begin(own), own_rows.count(own));
  for (Box& box : boxes) {
    for (std::size_t dim = 0; dim < box.offset.size(); ++dim)
      box.offset[dim] += block.box.offset[dim];
  }
  return boxes;
}

std::uint64_t TensorItem::numel_of(std::int64_t part) const {
  if (!blocks.empty()) {
    std::uint64_t sum = 0;
    for (const Box& box : boxes_of(part)) sum += volume(box.view());
    return sum;
  }
  const std::uint64_t numel = volume({shape, shape});
  if (!cut) return numel;
  return numel / static_cast<std::uint64_t>(rows.rows) *
         static_cast<std::uint64_t>(rows.count(part));
}

std::uint64_t TensorItem::bytes_of(std::int64_t part, const Box& box) const {
  if (parts_are_boxes()) return part + 1 == part_count() ? last_bytes_ : bytes_;
  return std::ranges::find_if(bytes_of_sizes_,
                              [&](const auto& size) { return size.first == box.size; })
      ->second;
}

void FolderPlan::add_value(std::size_t entry, const Value& value, bool encode) {
  TorchSaveLayout layout(value);
  ValueItem item{entry, 0, 0, layout.bytes(), {}};
  if (encode && layout.storages().empty() && encoded_bytes_ + item.bytes <= kMaxEncodedBytes) {
    item.encoded = layout.encoded();
    encoded_bytes_ += item.bytes;
  }
  values_.push_back(std::move(item));
}

void FolderPlan::place_items() {
  value_bytes_.assign(static_cast<std::size_t>(world_size_), 0);
  for (ValueItem& item : values_) {
    std::uint64_t& end = value_bytes_[static_cast<std::size_t>(item.rank)];
    item.offset = end;
    end = checked_add(item.offset, item.bytes, "size of a data file");
  }
  Cursor cursor(*this);
  file_bytes_ = value_bytes_;
  for (const TensorItem& item : tensors_) {
    item.for_each_chunk([&](const ChunkItem& chunk) {
      file_bytes_[static_cast<std::size_t>(chunk.rank)] =
          cursor.next(chunk.rank, chunk.bytes) + chunk.bytes;
    });
  }
}

std::uint64_t FolderPlan::Cursor::next(std::int64_t rank, std::uint64_t bytes) {
  std::uint64_t& end = ends_[static_cast<std::size_t>(rank)];
  const std::uint64_t offset = end;
  end = checked_add(offset, bytes, "size of a data file");
  return offset;
}

void FolderPlan::write_metadata(const MetadataWriter::Sink& sink) const {
  MetadataWriter writer(sink);
  std::vector<const TensorItem*> by_entry(entries_.size(), nullptr);
  for (const TensorItem& item : tensors_) by_entry[item.entry] = &item;
  for (std::size_t e = 0; e < entries_.size(); ++e) {
    const TensorItem* item = by_entry[e];
    if (item == nullptr) {
      writer.value(entries_[e].key);
      continue;
    }
    writer.begin_tensor(entries_[e].key, item->dtype, item->shape);
    item->for_each_chunk([&](const ChunkItem& chunk) { writer.chunk(chunk.box.view()); });
    writer.end_tensor();
  }
  writer.begin_paths();
  for (std::size_t e = 0; e < entries_.size(); ++e) writer.path(e, entries_[e].path);
  writer.begin_items();
  const auto place = [](std::int64_t rank, const std::string& name, std::uint64_t offset,
                        std::uint64_t bytes) {
    return MetadataWriter::ItemPlace{static_cast<std::size_t>(rank), name, offset, bytes};
  };
  for (const ValueItem& item : values_) {
    writer.value_item(item.entry, place(item.rank, file_name(item.rank), item.offset, item.bytes));
  }
  Cursor cursor(*this);
  for (const TensorItem& item : tensors_) {
    item.for_each_chunk([&](const ChunkItem& chunk) {
      const std::string name = file_name(chunk.rank);
      writer.tensor_item(
          item.entry, static_cast<std::size_t>(chunk.number), chunk.box.offset,
          place(chunk.rank, name, cursor.next(chunk.rank, chunk.bytes), chunk.bytes));
    });
  }
  writer.finish();
}

Balance::Balance(std::int64_t world_size) {
  for (std::int64_t rank = 1; rank < world_size; ++rank) others_.emplace(0, rank);
}

std::int64_t Balance::place(std::uint64_t bytes) {
  const std::uint64_t weight = bytes == 0 ? 1 : bytes;
  if (others_.empty() || first_ <= others_.top().first) {
    first_ += weight;
    return 0;
  }
  auto [load, rank] = others_.top();
  others_.pop();
  others_.emplace(load + weight, rank);
  return rank;
}

}  // namespace fsdp::formats::dcp
