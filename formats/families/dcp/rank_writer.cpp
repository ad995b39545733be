// SPDX-License-Identifier: Apache-2.0
#include "formats/families/dcp/rank_writer.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/families/dcp/sharding.h"
#include "formats/families/torch/writer.h"
#include "formats/state/content/content.h"
#include "formats/state/content/tensor_value.h"

namespace fsdp::formats::dcp {
namespace {

// Throws unless the stream is at its planned position, which `.metadata` will name.
void check_position(const OutputStream& out, std::uint64_t planned) {
  if (out.position() == planned) return;
  throw Error(ErrorCode::kExtent, cat(out.file().name(), ": wrote ", out.position(),
                                      " bytes, but the plan has ", planned));
}

bool has_elements(std::span<const std::int64_t> shape) {
  return std::ranges::find(shape, 0) == shape.end();
}

}  // namespace

Value part_reference(std::size_t number, const PartTensor& tensor) {
  const Value chunk = chunk_object(tensor.dtype, tensor.shape);
  StorageRef storage = *dense_tensor(chunk)->storage;
  storage.tensor = TensorRef{number, std::nullopt};
  return make_dense_tensor(tensor.dtype, tensor.shape, std::move(storage));
}

RankPlan::RankPlan(const Value& content, std::span<const PartTensor> tensors,
                   std::int64_t world_size, bool with_values)
    : FolderPlan(world_size) {
  check_world_size(world_size);
  entries_ = entries_of(content);
  Balance balance(world_size);
  for (std::size_t e = 0; e < entries_.size(); ++e) {
    const auto number = tensor_number(entries_[e].value);
    if (!number) {
      add_value(e, entries_[e].value, with_values);
      const TorchSaveLayout archive(entries_[e].value);
      for (const StorageRef& storage : archive.storages()) {
        if (!tensors[storage.tensor.value().number].writers) continue;
        throw Error(ErrorCode::kUnsupported,
                    cat(quote(entries_[e].key, 200), ": is a ", kind_name(entries_[e].value.kind()),
                        " that holds a sharded tensor; only dicts and lists may hold one"));
      }
      continue;
    }
    const PartTensor& tensor = tensors[*number];
    TensorItem item{};
    item.entry = e;
    item.tensor = *number;
    item.dtype = tensor.dtype;
    // Not the tensor's shape: several views may share the tensor that they refer to.
    item.shape = dense_tensor(entries_[e].value)->shape;
    const std::uint64_t bytes = numel_of(item.shape) * item_bytes(item.dtype);
    if (!tensor.writers) {
      item.rank = balance.place(bytes);
    } else {
      item.writers = tensor.writers;
      item.cut = !item.shape.empty() && has_elements(item.shape);
      item.rank = item.writers->front();
      if (item.cut) {
        item.blocks = tensor.blocks;
        item.row_dims = tensor.row_dims;
        item.rows = cut_rows(count_rows(item.shape, item.row_dims),
                             static_cast<std::int64_t>(item.writers->size()));
      }
      balance.add_cut(bytes);
    }
    item.measure();
    tensors_.push_back(std::move(item));
  }
  place_items();
}

void write_rank_file(OutputFile& file, const RankPlan& layout, std::int64_t rank,
                     const PartBytes& bytes, CacheUse use) {
  if (layout.file_bytes(rank) != 0) file.reserve(layout.file_bytes(rank));
  // Items lie one after another in the order of this walk.
  OutputStream out(file, use);
  for (const ValueItem& item : layout.values()) {
    if (item.rank != rank) continue;
    check_position(out, item.offset);
    if (!item.encoded.empty()) {
      out.write(std::as_bytes(std::span(item.encoded)));
      continue;
    }
    TorchSaveLayout archive(layout.entries()[item.entry].value);
    write_archive(out, archive,
                  [&](const StorageRef& storage) { return bytes(storage.tensor.value().number); });
  }
  FolderPlan::Cursor planned(layout);
  for (const TensorItem& item : layout.tensors()) {
    std::int64_t part = -1;  // the chunks of one part follow one another
    std::span<const std::byte> rest;
    item.for_each_chunk([&](const ChunkItem& chunk) {
      if (chunk.rank != rank) return;
      check_position(out, planned.next(rank, chunk.bytes));
      TorchSaveLayout archive(chunk_object(item.dtype, chunk.box.size));
      write_archive(out, archive, [&](const StorageRef&) {
        if (std::exchange(part, chunk.part) != chunk.part) {
          rest = bytes(item.tensor);
          check_tensor_bytes(out, item.numel_of(part) * item_bytes(item.dtype), rest.size());
        }
        const auto own = rest.first(volume(chunk.box.view()) * item_bytes(item.dtype));
        rest = rest.subspan(own.size());
        return own;
      });
    });
  }
  out.flush();
  check_position(out, layout.file_bytes(rank));
}

void write_metadata_file(OutputFile& file, const FolderPlan& items) {
  std::uint64_t at = 0;
  items.write_metadata([&](std::string_view block) {
    file.write_at(at, std::as_bytes(std::span(block)));
    at += block.size();
  });
}

}  // namespace fsdp::formats::dcp
