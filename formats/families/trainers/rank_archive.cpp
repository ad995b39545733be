// SPDX-License-Identifier: Apache-2.0
#include "formats/families/trainers/rank_archive.h"

#include <algorithm>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "formats/bytes/base/crc32.h"
#include "formats/families/torch/writer.h"
#include "formats/state/content/tensor_value.h"

namespace fsdp::formats {
namespace {

// The archive number of the storages of this output, which no source has.
constexpr std::uint64_t kOwnArchive = UINT64_MAX;

class HeldBytes : public ByteSource {
 public:
  explicit HeldBytes(std::shared_ptr<const std::vector<std::byte>> bytes)
      : bytes_(std::move(bytes)), source_(*bytes_) {}
  std::uint64_t size() const override { return source_.size(); }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    source_.read_at(offset, out);
  }

 private:
  std::shared_ptr<const std::vector<std::byte>> bytes_;
  MemorySource source_;
};

TargetPiece held_piece(const Box& box, DType dtype,
                       const std::shared_ptr<const std::vector<std::byte>>& bytes) {
  TargetPiece piece;
  piece.key = "ranks";
  piece.dtype = dtype;
  piece.box = box;
  ChunkData data;
  data.source = std::make_shared<HeldBytes>(bytes);
  data.file = "memory";
  data.storage_bytes = bytes->size();
  data.crc = crc32(0, *bytes);
  data.dtype = dtype;
  piece.sources = [box, data] { return std::vector<SourceChunk>{{box, data}}; };
  return piece;
}

class Zeros : public ByteSource {
 public:
  explicit Zeros(std::uint64_t bytes) : bytes_(bytes) {}
  std::uint64_t size() const override { return bytes_; }
  void read_at(std::uint64_t /*offset*/, std::span<std::byte> out) const override {
    std::ranges::fill(out, std::byte{0});
  }

 private:
  std::uint64_t bytes_;
};

Box flat_box(std::int64_t begin, std::int64_t end) {
  return {{begin}, {end - begin}};
}

SourceChunk zeros(std::int64_t begin, std::int64_t end, DType dtype) {
  ChunkData data;
  data.storage_bytes = static_cast<std::uint64_t>(end - begin) * item_bytes(dtype);
  data.source = std::make_shared<Zeros>(data.storage_bytes);
  data.file = "zeros";
  data.self_checked = true;
  data.dtype = dtype;
  return {flat_box(begin, end), data};
}

// Returns the place of a box's first element in the flattened tensor.
std::int64_t flat_begin(std::span<const std::int64_t> shape, const BoxView& box) {
  std::int64_t at = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) at = at * shape[d] + box.offset[d];
  return at;
}

// Adds the parts of the chunks of a tensor that lie in a run.
void add_run(const Checkpoint& source, const TensorRun& run, ChunkCache& cache,
             std::vector<SourceChunk>& out) {
  const TensorEntry& tensor = source.index().tensors[run.tensor];
  for (std::size_t c = 0; c < tensor.chunks.size(); ++c) {
    const BoxView box = tensor.chunks.box(c);
    const std::int64_t first = flat_begin(tensor.shape, box);
    const std::int64_t begin = std::max(first, run.begin);
    const std::int64_t end = std::min(first + static_cast<std::int64_t>(volume(box)), run.end);
    if (begin >= end) continue;
    ChunkData data = cache.get(source, run.tensor, c);
    const std::int64_t stride = data.strides.empty() ? 1 : data.strides.back();
    data.first += static_cast<std::uint64_t>((begin - first) * stride);
    data.strides = {stride};
    const std::int64_t at = run.at + begin - run.begin;
    out.push_back({flat_box(at, at + end - begin), std::move(data)});
  }
}

TargetPiece flat_piece(const Checkpoint& source, DType dtype, const Box& box,
                       const std::vector<TensorRun>& runs,
                       const std::shared_ptr<ChunkCache>& cache) {
  TargetPiece piece;
  piece.key = runs.empty() ? "zeros" : source.index().tensors[runs[0].tensor].key;
  piece.dtype = dtype;
  piece.box = box;
  piece.sources = [&source, dtype, numel = box.size[0], runs, cache] {
    std::vector<SourceChunk> out;
    std::int64_t done = 0;
    for (const TensorRun& run : runs) {
      if (done < run.at) out.push_back(zeros(done, run.at, dtype));
      add_run(source, run, *cache, out);
      done = run.at + run.end - run.begin;
    }
    if (done < numel) out.push_back(zeros(done, numel, dtype));
    return out;
  };
  return piece;
}

}  // namespace

Value RankArchive::flat(DType dtype, std::int64_t numel, std::vector<TensorRun> runs) {
  Part part;
  part.box = whole_box(std::vector<std::int64_t>{numel});
  part.dtype = dtype;
  part.runs = std::move(runs);
  return made(std::move(part));
}

Value RankArchive::part(const TensorRef& reference, Box box) {
  const auto key = std::tuple(reference, box.offset, box.size);
  const auto [at, fresh] = places_.try_emplace(key, parts_.size());
  if (!fresh) return parts_[at->second].tensor;
  const DType dtype = reference.cast.value_or(source_.index().tensors[reference.number].dtype);
  return made({reference, std::move(box), dtype});
}

Value RankArchive::counted_up(DType dtype, std::int64_t count) {
  const std::size_t width = item_bytes(dtype);
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * width);
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::size_t b = 0; b < width; ++b)
      bytes[static_cast<std::size_t>(i) * width + b] = static_cast<std::byte>(i >> (8 * b) & 0xFF);
  }
  return made({{},
               whole_box(std::vector<std::int64_t>{count}),
               dtype,
               std::make_shared<const std::vector<std::byte>>(std::move(bytes))});
}

Value RankArchive::made(Part part) {
  StorageRef storage;
  storage.key = std::to_string(parts_.size());
  storage.archive = kOwnArchive;
  const std::uint64_t numel = volume(part.box.view());
  storage.numel = storage_class(part.dtype).empty() ? numel * item_bytes(part.dtype) : numel;
  part.tensor = make_dense_tensor(part.dtype, part.box.size, std::move(storage));
  parts_.push_back(std::move(part));
  return parts_.back().tensor;
}

std::uint64_t RankArchive::file_bytes(const Value& root) {
  return TorchSaveLayout(root).bytes();
}

CopyResult RankArchive::write(const Value& root, OutputFile& file, const CopyOptions& options,
                              const std::shared_ptr<ChunkCache>& chunks) const {
  TorchSaveLayout layout(root);
  file.reserve(layout.bytes());
  std::vector<TargetPiece> pieces;
  for (std::size_t s = 0; s < layout.storages().size(); ++s) {
    const StorageRef& storage = layout.storages()[s];
    TargetPiece piece;
    if (storage.archive != kOwnArchive) {
      piece = storage_piece(object_, storage);
    } else if (const Part& part = parts_.at(std::stoull(storage.key)); part.own != nullptr) {
      piece = held_piece(part.box, part.dtype, part.own);
    } else if (part.runs) {
      piece = flat_piece(source_, part.dtype, part.box, *part.runs, chunks);
    } else {
      piece = box_piece(std::make_shared<TensorSource>(source_, part.reference.number, chunks),
                        part.box, part.dtype);
    }
    piece.file = &file;
    piece.offset = layout.storage_offset(s);
    pieces.push_back(std::move(piece));
  }
  return copy_archive(layout, pieces, file, options);
}

}  // namespace fsdp::formats
