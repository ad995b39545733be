// SPDX-License-Identifier: Apache-2.0
#include "formats/layout/safetensors_writer.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <string_view>
#include <tuple>
#include <unordered_set>

#include "formats/layout/safetensors.h"
#include "formats/layout/safetensors_index.h"
#include "formats/layout/source_pieces.h"
#include "formats/layout/tensor_value.h"

namespace fsdp::formats::safetensors {
namespace {

// What readers look for in the metadata; a tied tensor of that very name stays unmentioned there.
constexpr std::string_view kFormatKey = "format";

std::string shard_name(std::size_t number, std::size_t count) {
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "model-%05zu-of-%05zu.safetensors", number, count);
  return name.data();
}

}  // namespace

Writer::Writer(const Checkpoint& checkpoint, const WriterOptions& options)
    : checkpoint_(checkpoint) {
  const Index& index = checkpoint.index();
  std::vector<std::size_t> kept;
  find_tied(kept);
  // Files are filled in the order of the checkpoint, so that layers stay together.
  std::uint64_t filled = 0;
  files_.emplace_back();
  std::uint64_t total = 0;
  for (const std::size_t t : kept) {
    const std::uint64_t bytes = index.tensors[t].bytes();
    if (options.max_shard_bytes && !files_.back().tensors.empty() &&
        (bytes > *options.max_shard_bytes || filled > *options.max_shard_bytes - bytes)) {
      files_.emplace_back();
      filled = 0;
    }
    files_.back().tensors.push_back(t);
    filled += bytes;
    total += bytes;
  }
  FileIndex file_index;
  file_index.total_size = total;
  for (std::size_t f = 0; f < files_.size(); ++f) {
    File& file = files_[f];
    file.name = files_.size() == 1 ? "model.safetensors" : shard_name(f + 1, files_.size());
    for (const std::size_t t : file.tensors)
      file_index.weight_map.push_back({index.tensors[t].key, file.name});
    std::vector<std::pair<Tensor, std::size_t>> ordered;
    for (const std::size_t t : file.tensors) {
      const TensorEntry& entry = index.tensors[t];
      ordered.push_back({{entry.key, entry.dtype, entry.shape, 0, entry.bytes()}, t});
    }
    std::sort(ordered.begin(), ordered.end(),
              [](const auto& a, const auto& b) { return stored_before(a.first, b.first); });
    std::vector<Tensor> tensors;
    file.tensors.clear();
    for (auto& [tensor, t] : ordered) {
      file.tensors.push_back(t);
      tensors.push_back(std::move(tensor));
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
  }
  if (options.max_shard_bytes) index_ = make_index(file_index);
}

void Writer::find_tied(std::vector<std::size_t>& kept) {
  const Index& index = checkpoint_.index();
  using Place = std::tuple<std::uint64_t, std::vector<std::int64_t>, DType, std::uint64_t,
                           std::vector<std::int64_t>>;
  std::map<Place, std::size_t> places;
  for (std::size_t t = 0; t < index.tensors.size(); ++t) {
    const TensorEntry& tensor = index.tensors[t];
    // Only a torch.save file shows that two tensors are views of the same bytes.
    if (checkpoint_.description().format == "torch" && tensor.numel() != 0) {
      const ChunkData data = checkpoint_.chunk(tensor, 0);
      const auto [at, fresh] = places.try_emplace(
          Place{data.file_offset, tensor.shape, tensor.dtype, data.first, data.strides}, t);
      if (!fresh) {
        tied_.emplace_back(tensor.key, index.tensors[at->second].key);
        continue;
      }
    }
    kept.push_back(t);
  }
}

std::vector<TargetPiece> Writer::pieces(const std::vector<OutputFile*>& outputs) const {
  std::vector<TargetPiece> pieces;
  for (std::size_t f = 0; f < files_.size(); ++f) {
    for (std::size_t i = 0; i < files_[f].tensors.size(); ++i) {
      TargetPiece piece = whole_tensor_piece(checkpoint_, files_[f].tensors[i]);
      piece.file = outputs[f];
      piece.offset = files_[f].begins[i];
      pieces.push_back(std::move(piece));
    }
  }
  return pieces;
}

void Writer::finish(const std::vector<OutputFile*>& outputs) const {
  for (std::size_t f = 0; f < files_.size(); ++f)
    outputs[f]->write_at(0, std::as_bytes(std::span(files_[f].header)));
}

}  // namespace fsdp::formats::safetensors
