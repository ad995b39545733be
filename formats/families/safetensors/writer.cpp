// SPDX-License-Identifier: Apache-2.0
#include "formats/families/safetensors/writer.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string_view>
#include <unordered_set>

#include "formats/families/safetensors/file.h"
#include "formats/families/safetensors/index.h"
#include "formats/state/content/content.h"
#include "formats/state/content/tensor_value.h"

namespace fsdp::formats::safetensors {
namespace {

// The metadata key that readers look for; a tied tensor with this name is not listed there.
constexpr std::string_view kFormatKey = "format";

std::string shard_name(std::size_t number, std::size_t count) {
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "model-%05zu-of-%05zu.safetensors", number, count);
  return name.data();
}

// A tensor to be written: its part of the header, and its source.
struct Entry {
  Tensor tensor;
  TensorRef reference;
};

// Returns the tensors of `content` in order, tied ones once.  The other names of tied tensors go to
// `tied`; a tensor named `apart` is always returned.
std::vector<Entry> entries_of(const Value& content, const std::string& apart,
                              std::vector<std::pair<std::string, std::string>>& tied) {
  std::vector<Entry> entries;
  std::map<TensorRef, std::size_t> by_reference;
  for (const Leaf& leaf : leaves_of(content)) {
    if (!tensor_number(leaf.value)) continue;
    const auto tensor = dense_tensor(leaf.value);
    const auto [at, fresh] = by_reference.try_emplace(*tensor->storage->tensor, entries.size());
    if (!fresh && leaf.key != apart) {
      tied.emplace_back(leaf.key, entries[at->second].tensor.name);
      continue;
    }
    const std::uint64_t bytes = numel_of(tensor->shape) * item_bytes(tensor->dtype);
    entries.push_back(
        {{leaf.key, tensor->dtype, tensor->shape, 0, bytes}, *tensor->storage->tensor});
  }
  return entries;
}

}  // namespace

Writer::Writer(const Checkpoint& checkpoint, const Value& content, const WriterOptions& options)
    : checkpoint_(checkpoint) {
  const std::vector<Entry> kept = entries_of(content, options.apart, tied_);
  // Files are filled in the order of the checkpoint, so that layers stay together.
  std::vector<std::vector<Entry>> parts(1);
  std::uint64_t filled = 0;
  std::uint64_t total = 0;
  FileIndex file_index;
  for (const Entry& entry : kept) {
    const std::uint64_t bytes = entry.tensor.bytes;
    if (options.max_shard_bytes && !parts.back().empty() &&
        (bytes > *options.max_shard_bytes || filled > *options.max_shard_bytes - bytes)) {
      parts.emplace_back();
      filled = 0;
    }
    parts.back().push_back(entry);
    filled += bytes;
    total += bytes;
  }
  file_index.total_size = total;
  for (std::size_t f = 0; f < parts.size(); ++f) {
    File file;
    file.name = parts.size() == 1 ? "model.safetensors" : shard_name(f + 1, parts.size());
    for (const Entry& entry : parts[f])
      file_index.weight_map.push_back({entry.tensor.name, file.name});
    std::ranges::sort(
        parts[f], [](const Entry& a, const Entry& b) { return stored_before(a.tensor, b.tensor); });
    std::vector<Tensor> tensors;
    for (Entry& entry : parts[f]) {
      file.tensors.push_back(entry.reference);
      tensors.push_back(std::move(entry.tensor));
    }
    std::vector<std::pair<std::string, std::string>> metadata = {{std::string(kFormatKey), "pt"}};
    std::unordered_set<std::string_view> names;
    for (const Tensor& tensor : tensors) names.insert(tensor.name);
    for (const auto& [name, holder] : tied_) {
      if (names.contains(holder) && name != kFormatKey) metadata.emplace_back(name, holder);
    }
    file.header = make_header(tensors, metadata);
    file.bytes = file.header.size();
    for (const Tensor& tensor : tensors) {
      file.begins.push_back(tensor.begin);
      file.bytes = std::max(file.bytes, tensor.begin + tensor.bytes);
    }
    files_.push_back(std::move(file));
  }
  if (options.max_shard_bytes) index_ = make_index(file_index);
}

void Writer::write(const std::vector<OutputFile*>& outputs, const CopyOptions& options,
                   CopyResult& total) const {
  std::vector<TargetPiece> pieces;
  for (std::size_t f = 0; f < files_.size(); ++f) {
    for (std::size_t i = 0; i < files_[f].tensors.size(); ++i) {
      TargetPiece piece = reference_piece(checkpoint_, files_[f].tensors[i]);
      piece.file = outputs[f];
      piece.offset = files_[f].begins[i];
      pieces.push_back(std::move(piece));
    }
  }
  total += copy_pieces(pieces, options);
  for (std::size_t f = 0; f < files_.size(); ++f)
    outputs[f]->write_at(0, std::as_bytes(std::span(files_[f].header)));
}

void Writer::write_files(AtomicFolder& folder, std::span<const PlannedFile> names,
                         const CopyOptions& options, CopyResult& total) const {
  std::vector<OutputFile*> outputs;
  for (std::size_t f = 0; f < files_.size(); ++f) {
    outputs.push_back(&folder.add_file(names[f].name));
    outputs.back()->reserve(files_[f].bytes);
  }
  write(outputs, options, total);
  if (names.size() > files_.size() && names[files_.size()].name == kIndexName)
    folder.add_file(kIndexName).write_at(0, std::as_bytes(std::span(index_)));
}

}  // namespace fsdp::formats::safetensors
