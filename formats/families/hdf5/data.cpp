// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hdf5/data.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "formats/bytes/base/byte_reader.h"
#include "formats/bytes/base/crc32.h"
#include "formats/bytes/base/text.h"
#include "formats/families/hdf5/filters.h"
#include "formats/state/model/box.h"

namespace fsdp::formats::hdf5 {
namespace {

constexpr std::array<unsigned char, 8> kSignature = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1A, '\n'};
constexpr std::uint64_t kFirstUserBlock = 512;
constexpr std::size_t kDataBlockBytes = 64U << 10U;

bool signature_at(const ByteSource& source, std::uint64_t offset) {
  if (offset > source.size() || source.size() - offset < kSignature.size()) return false;
  std::array<std::byte, kSignature.size()> found{};
  source.read_at(offset, found);
  return std::memcmp(found.data(), kSignature.data(), found.size()) == 0;
}

// Returns the offset of a signature after a user block.
std::optional<std::uint64_t> user_block(const ByteSource& source) {
  for (std::uint64_t at = kFirstUserBlock; at < source.size(); at *= 2) {
    if (signature_at(source, at)) return at;
  }
  return std::nullopt;
}

std::string at_dataset(const File& file, const Dataset& dataset) {
  return file.name() + ": " + path_text(dataset.path);
}

Error mismatch(const File& file, const Dataset& dataset, const StoredChunk& chunk,
               std::uint32_t stored, std::uint32_t computed) {
  return {ErrorCode::kH5Checksum,
          cat(at_dataset(file, dataset), ": chunk at byte ", chunk.address, ": fletcher32 stored ",
              hex32(stored), ", computed ", hex32(computed))};
}

bool applied(const Dataset& dataset, const StoredChunk& chunk, Filter filter) {
  for (std::size_t f = 0; f < dataset.filters.size(); ++f) {
    if (dataset.filters[f] == filter && (chunk.filter_mask >> f & 1U) == 0) return true;
  }
  return false;
}

bool only_fletcher(const Dataset& dataset, const StoredChunk& chunk) {
  return !applied(dataset, chunk, Filter::kDeflate) && !applied(dataset, chunk, Filter::kShuffle);
}

// Returns whether the chunk has a checksum; deflate carries an Adler-32.
bool has_checksum(const Dataset& dataset, const StoredChunk& chunk) {
  return applied(dataset, chunk, Filter::kFletcher32) || applied(dataset, chunk, Filter::kDeflate);
}

// Reads the chunk through `buffer`.  Throws: kH5Checksum.
void check_fletcher(const File& file, const Dataset& dataset, const StoredChunk& chunk,
                    std::span<std::byte> buffer,
                    const std::function<void(std::uint64_t, std::span<const std::byte>)>& use) {
  const std::uint64_t bytes = chunk.bytes - kFletcherBytes;
  Fletcher32 sum(bytes);
  read_parts(file, chunk.address, bytes, buffer,
             [&](std::uint64_t at, std::span<const std::byte> part) {
               sum.add(at, part);
               if (use) use(at, part);
             });
  std::array<std::byte, kFletcherBytes> stored{};
  file.read_at(chunk.address + bytes, stored);
  if (!same_fletcher(load_u32(stored, 0), sum.value()))
    throw mismatch(file, dataset, chunk, load_u32(stored, 0), sum.value());
}

// A chunk whose fletcher32 is compared before any of its bytes is returned.
class CheckedChunk : public ByteSource {
 public:
  CheckedChunk(std::shared_ptr<const File> file, const Dataset& dataset, const StoredChunk& chunk)
      : file_(std::move(file)), dataset_(dataset), chunk_(chunk) {}
  std::uint64_t size() const override { return chunk_.bytes - kFletcherBytes; }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    if (offset == 0 && out.size() == size()) {
      check_fletcher(*file_, dataset_, chunk_, out, {});
      return;
    }
    if (!checked_) {
      std::array<std::byte, kDataBlockBytes> buffer{};
      check_fletcher(*file_, dataset_, chunk_, buffer, {});
      checked_ = true;
    }
    SourceRange(file_, chunk_.address, size()).read_at(offset, out);
  }

 private:
  std::shared_ptr<const File> file_;
  const Dataset& dataset_;
  StoredChunk chunk_;
  mutable std::atomic<bool> checked_{false};
};

// A chunk whose filters are undone at the first read.
class FilteredChunk : public ByteSource {
 public:
  FilteredChunk(std::shared_ptr<const File> file, const Dataset& dataset, const StoredChunk& chunk,
                Spill& spill)
      : file_(std::move(file)), dataset_(dataset), chunk_(chunk), spill_(spill) {}
  std::uint64_t size() const override { return dataset_.chunk_bytes(); }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    const auto range = spill_.get(file_->name(), chunk_.address, [&](const ByteSink& sink) {
      in_context([&] { return at_dataset(*file_, dataset_); },
                 [&] { sink(undo_filters(dataset_, chunk_, *file_)); });
    });
    SourceRange(range.source, range.offset, range.bytes).read_at(offset, out);
  }

 private:
  std::shared_ptr<const File> file_;
  const Dataset& dataset_;
  StoredChunk chunk_;
  Spill& spill_;
};

// The dense elements of a dataset whose chunks are runs of elements.
class JoinedChunks : public ByteSource {
 public:
  JoinedChunks(std::shared_ptr<const File> file, const Dataset& dataset, const ChunkRuns& runs)
      : file_(std::move(file)), dataset_(dataset), runs_(runs), bytes_(dataset.bytes()) {}
  std::uint64_t size() const override { return bytes_; }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    if (offset > bytes_ || out.size() > bytes_ - offset) {
      throw Error(ErrorCode::kTruncated, cat(at_dataset(*file_, dataset_), ": ", out.size(),
                                             " bytes at byte ", offset, " of ", bytes_));
    }
    while (!out.empty()) {
      const std::uint64_t c = runs_.chunk(offset);
      const std::uint64_t inside = offset - runs_.begin(c);
      const auto part =
          out.subspan(0, std::min<std::uint64_t>(out.size(), runs_.bytes(c) - inside));
      file_->read_at(dataset_.chunks[c].address + inside, part);
      offset += part.size();
      out = out.subspan(part.size());
    }
  }

 private:
  std::shared_ptr<const File> file_;
  const Dataset& dataset_;
  ChunkRuns runs_;
  std::uint64_t bytes_;
};

ChunkData data_of(const File& file, const Dataset& dataset, std::uint64_t address,
                  std::uint64_t bytes) {
  ChunkData data;
  data.file = file.name();
  data.file_offset = address;
  data.storage_bytes = bytes;
  data.dtype = dataset.dtype;
  data.mismatch = ErrorCode::kH5Checksum;
  return data;
}

// Returns the fill value as one element that strides of 0 repeat.
ChunkData fill_data(const File& file, const Dataset& dataset) {
  ChunkData data = data_of(file, dataset, file.size(), dataset.fill.size());
  data.source = std::make_shared<MemorySource>(std::as_bytes(std::span(dataset.fill)));
  data.strides.assign(dataset.shape.size(), 0);
  return data;
}

}  // namespace

bool looks_like_hdf5(const ByteSource& source) {
  return signature_at(source, 0) || user_block(source).has_value();
}

void check_signature(const File& file) {
  if (file.size() == 0) throw Error(ErrorCode::kEmpty, file.name() + ": has no bytes");
  if (signature_at(file, 0)) return;
  if (const auto at = user_block(file)) {
    throw Error(ErrorCode::kH5Open,
                cat(file.name(), ": has a user block of ", *at,
                    " bytes in front, which is not supported; h5unjam removes it"));
  }
  throw Error(ErrorCode::kH5Open, file.name() + ": has no HDF5 signature at byte 0");
}

ChunkData chunk_data(const std::shared_ptr<const File>& file, const Dataset& dataset,
                     std::size_t number, Spill& spill) {
  const StoredChunk& chunk = dataset.chunks.at(number);
  if (chunk.bytes == 0) return fill_data(*file, dataset);
  ChunkData data = data_of(*file, dataset, chunk.address, dataset.chunk_bytes());
  data.strides = row_major_strides(dataset.chunk_shape);
  if (!only_fletcher(dataset, chunk)) {
    data.source = std::make_shared<FilteredChunk>(file, dataset, chunk, spill);
    data.self_checked = has_checksum(dataset, chunk);
  } else if (applied(dataset, chunk, Filter::kFletcher32)) {
    data.source = std::make_shared<CheckedChunk>(file, dataset, chunk);
    data.self_checked = true;
  } else {
    data.source = file;
    data.storage_offset = chunk.address;
  }
  return data;
}

ChunkData whole_data(const std::shared_ptr<const File>& file, const Dataset& dataset) {
  switch (dataset.storage) {
    case Dataset::Storage::kFill:
      return fill_data(*file, dataset);
    case Dataset::Storage::kCompact: {
      // The place in the file is not known; messages name the dataset.
      ChunkData data = data_of(*file, dataset, file->size(), dataset.bytes());
      data.source = std::make_shared<MemorySource>(std::as_bytes(std::span(dataset.data)));
      return data;
    }
    default: {
      ChunkData data = data_of(*file, dataset, dataset.address, dataset.bytes());
      data.source = file;
      data.storage_offset = dataset.address;
      data.crc = dataset.crc;
      return data;
    }
  }
}

std::optional<ChunkData> dense_data(const std::shared_ptr<const File>& file,
                                    const Dataset& dataset) {
  if (dataset.storage != Dataset::Storage::kChunked) return whole_data(file, dataset);
  if (!dataset.crc) return std::nullopt;
  const auto runs = runs_of(dataset);
  const bool plain = std::ranges::all_of(dataset.chunks, [&](const StoredChunk& c) {
    return c.bytes != 0 && only_fletcher(dataset, c);
  });
  if (!runs || !plain) return std::nullopt;
  ChunkData data = data_of(*file, dataset, dataset.chunks[0].address, dataset.bytes());
  data.source = std::make_shared<JoinedChunks>(file, dataset, *runs);
  data.crc = dataset.crc;
  return data;
}

std::uint32_t structure_crc(const ByteSource& file, std::span<const Dataset> datasets) {
  std::array<std::byte, kDataBlockBytes> buffer{};
  std::uint32_t crc = 0;
  for (const Extent& extent : structure_extents(data_extents(datasets), file.size())) {
    read_parts(file, extent.begin, extent.bytes, buffer,
               [&](std::uint64_t, std::span<const std::byte> part) { crc = crc32(crc, part); });
  }
  return crc;
}

CheckedBytes check_data(const File& file, const Dataset& dataset, std::span<std::byte> buffer,
                        const std::function<void(const Error&, Extent)>& bad) {
  CheckedBytes result;
  if (dataset.storage == Dataset::Storage::kFill) return result;
  std::uint32_t crc = 0;
  if (dataset.storage == Dataset::Storage::kCompact)
    crc = crc32(0, std::as_bytes(std::span(dataset.data)));
  bool whole = true;  // `crc` is that of all elements
  bool damaged = false;
  if (dataset.storage == Dataset::Storage::kContiguous) {
    read_parts(file, dataset.address, dataset.bytes(), buffer,
               [&](std::uint64_t, std::span<const std::byte> part) { crc = crc32(crc, part); });
  }
  const auto runs = dataset.storage == Dataset::Storage::kChunked ? runs_of(dataset) : std::nullopt;
  for (std::size_t c = 0; c < dataset.chunks.size(); ++c) {
    const StoredChunk& chunk = dataset.chunks[c];
    whole = whole && runs && chunk.bytes != 0;
    if (chunk.bytes == 0) continue;
    const std::uint64_t elements = whole ? runs->bytes(c) : 0;  // bytes that are not padding
    const auto use = [&](std::uint64_t at, std::span<const std::byte> part) {
      if (at < elements)
        crc = crc32(crc, part.subspan(0, std::min<std::uint64_t>(part.size(), elements - at)));
    };
    const bool checksum = has_checksum(dataset, chunk);
    (checksum || dataset.crc ? result.checked : result.unchecked) += chunk.bytes;
    try {
      if (!only_fletcher(dataset, chunk)) {
        use(0, undo_filters(dataset, chunk, file));
      } else if (checksum) {
        check_fletcher(file, dataset, chunk, buffer, use);
      } else if (dataset.crc) {
        read_parts(file, chunk.address, chunk.bytes, buffer, use);
      }
    } catch (const Error& error) {
      damaged = true;
      bad(error, {chunk.address, chunk.bytes});
    }
  }
  if (dataset.storage != Dataset::Storage::kChunked)
    (dataset.crc ? result.checked : result.unchecked) += dataset.bytes();
  if (dataset.crc && whole && !damaged && crc != *dataset.crc) {
    bad(Error(ErrorCode::kH5Checksum, cat(at_dataset(file, dataset), ": CRC-32 stored ",
                                          hex32(*dataset.crc), ", computed ", hex32(crc))),
        dataset.storage == Dataset::Storage::kContiguous ? Extent{dataset.address, dataset.bytes()}
                                                         : Extent{});
  }
  return result;
}

}  // namespace fsdp::formats::hdf5
