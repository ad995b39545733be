// SPDX-License-Identifier: Apache-2.0
#include "formats/layout/dcp_layout.h"

#include <algorithm>

#include "formats/base/checked_math.h"
#include "formats/layout/content.h"
#include "formats/layout/dcp_balance.h"
#include "formats/layout/dcp_names.h"
#include "formats/layout/tensor_value.h"
#include "formats/layout/torch_save_writer.h"

namespace fsdp::formats::dcp {
namespace {

// Encoded values kept between planning and writing; those beyond are read and encoded again.
constexpr std::uint64_t kMaxEncodedBytes = 24U << 20U;

std::string encoded(TorchSaveLayout& layout) {
  std::string out;
  layout.write_rest({}, [&](std::uint64_t, std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) out.push_back(static_cast<char>(byte));
  });
  return out;
}

}  // namespace

Value chunk_object(DType dtype, const std::vector<std::int64_t>& shape) {
  StorageRef storage;
  storage.key = "0";
  storage.archive = kTensorArchive;
  const std::uint64_t numel = checked_numel(shape, "a chunk");
  storage.numel = storage_class(dtype).empty() ? numel * item_bytes(dtype) : numel;
  return make_dense_tensor(dtype, shape, std::move(storage));
}

FolderLayout::FolderLayout(const Checkpoint& source, const Value& content, std::int64_t world_size,
                           const ShardingChoice& choice, const ValueCheck& on_value)
    : source_(source),
      world_size_(world_size),
      lightning_(source.description().layout == "lightning") {
  check_world_size(world_size);
  for (Leaf& entry : entries_of(content)) {
    if (!is_lightning_meta(entry)) {
      entries_.push_back(std::move(entry));
      continue;
    }
    lightning_meta_.emplace_back(Value::string(entry.key), resolved(source, entry.value));
    if (on_value) on_value(entry.key, lightning_meta_.back().second);
  }
  const ShardingRule rule(source, content, entries_, choice);
  for (std::size_t e = 0; e < entries_.size(); ++e) {
    if (tensor_number(entries_[e].value)) {
      add_tensor(e, rule);
    } else {
      add_value(e, on_value);
    }
  }
  place_items();
}

bool FolderLayout::is_lightning_meta(const Leaf& entry) const {
  const auto number = deferred_number(entry.value);
  if (!lightning_ || !number) return false;
  const Index& index = source_.index();
  return index.files[index.values[*number].location.file].name == kLightningMetaName;
}

void FolderLayout::add_value(std::size_t entry, const ValueCheck& on_value) {
  const Value value = resolved(source_, entries_[entry].value);
  if (on_value) on_value(entries_[entry].key, value);
  TorchSaveLayout layout(value);
  ValueItem item{entry, 0, 0, layout.bytes(), {}};
  if (layout.storages().empty() && encoded_bytes_ + item.bytes <= kMaxEncodedBytes) {
    item.encoded = encoded(layout);
    encoded_bytes_ += item.bytes;
  }
  values_.push_back(std::move(item));
}

void FolderLayout::add_tensor(std::size_t entry, const ShardingRule& rule) {
  const Leaf& leaf = entries_[entry];
  const std::size_t number = *tensor_number(leaf.value);
  const std::vector<std::int64_t>& shape = source_.index().tensors[number].shape;
  const DType dtype = dense_tensor(leaf.value)->dtype;
  TensorItem item{entry, number, dtype, rule.cuts(leaf), {}, 0, 0, 0};
  if (item.cut) item.rows = cut_rows(shape[0], world_size_);
  const auto item_bytes_of = [&](std::int64_t chunk) {
    return TorchSaveLayout(chunk_object(dtype, item.box_of(shape, chunk).size)).bytes();
  };
  item.bytes = item_bytes_of(0);
  item.last_bytes = item.chunk_count() > 1 ? item_bytes_of(item.chunk_count() - 1) : item.bytes;
  tensors_.push_back(item);
}

void FolderLayout::place_items() {
  const auto& source_tensors = source_.index().tensors;
  Balance balance(world_size_);
  std::size_t value = 0;
  std::size_t tensor = 0;
  for (std::size_t e = 0; e < entries_.size(); ++e) {
    if (value < values_.size() && values_[value].entry == e) {
      values_[value++].rank = balance.place(0);
      continue;
    }
    TensorItem& item = tensors_[tensor++];
    const std::uint64_t bytes = source_tensors[item.tensor].numel() * item_bytes(item.dtype);
    if (item.cut) {
      balance.add_cut(bytes);
    } else {
      item.rank = balance.place(bytes);
    }
  }
  const auto ranks = static_cast<std::size_t>(world_size_);
  value_bytes_.assign(ranks, 0);
  for (ValueItem& item : values_) {
    std::uint64_t& end = value_bytes_[static_cast<std::size_t>(item.rank)];
    item.offset = end;
    end = checked_add(item.offset, item.bytes, "size of a data file");
  }
  Cursor cursor(*this);
  file_bytes_ = value_bytes_;
  for (const TensorItem& item : tensors_) {
    for (std::int64_t c = 0; c < item.chunk_count(); ++c) {
      const std::int64_t rank = item.rank_of(c);
      file_bytes_[static_cast<std::size_t>(rank)] =
          cursor.next(rank, item.bytes_of(c)) + item.bytes_of(c);
    }
  }
}

std::uint64_t FolderLayout::Cursor::next(std::int64_t rank, std::uint64_t bytes) {
  std::uint64_t& end = ends_[static_cast<std::size_t>(rank)];
  const std::uint64_t offset = end;
  end = checked_add(offset, bytes, "size of a data file");
  return offset;
}

void FolderLayout::write_metadata(const MetadataWriter::Sink& sink) const {
  const auto& source_tensors = source_.index().tensors;
  MetadataWriter writer(sink);
  std::vector<const TensorItem*> by_entry(entries_.size(), nullptr);
  for (const TensorItem& item : tensors_) by_entry[item.entry] = &item;
  for (std::size_t e = 0; e < entries_.size(); ++e) {
    const TensorItem* item = by_entry[e];
    if (item == nullptr) {
      writer.value(entries_[e].key);
      continue;
    }
    const auto& shape = source_tensors[item->tensor].shape;
    writer.begin_tensor(entries_[e].key, item->dtype, shape);
    Box box = item->box_of(shape, 0);
    for (std::int64_t c = 0; c < item->chunk_count(); ++c) {
      if (item->cut) {
        box.offset[0] = item->rows.begin(c);
        box.size[0] = item->rows.count(c);
      }
      writer.chunk(box.view());
    }
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
    writer.value_item(item.entry,
                      place(item.rank, data_file_name(item.rank, 0), item.offset, item.bytes));
  }
  Cursor cursor(*this);
  for (const TensorItem& item : tensors_) {
    std::vector<std::int64_t> offset(source_tensors[item.tensor].shape.size(), 0);
    for (std::int64_t c = 0; c < item.chunk_count(); ++c) {
      const std::int64_t rank = item.rank_of(c);
      const std::uint64_t bytes = item.bytes_of(c);
      if (item.cut) offset[0] = item.rows.begin(c);
      const std::string name = data_file_name(rank, 0);
      writer.tensor_item(item.entry, static_cast<std::size_t>(c), offset,
                         place(rank, name, cursor.next(rank, bytes), bytes));
    }
  }
  writer.finish();
}

}  // namespace fsdp::formats::dcp
