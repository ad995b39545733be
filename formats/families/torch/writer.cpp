// SPDX-License-Identifier: Apache-2.0
#include "formats/families/torch/writer.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "formats/bytes/base/crc32.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/containers/pickle/writer.h"
#include "formats/containers/zip/records.h"
#include "formats/state/checkpoint/source_pieces.h"
#include "formats/state/content/content.h"

namespace fsdp::formats {
namespace {

// The folder inside the archive; torch.save uses this name when it writes to a stream.
constexpr std::string_view kPrefix = "archive";
constexpr std::uint64_t kAlignment = 64;

}  // namespace

TorchSaveLayout::TorchSaveLayout(const Value& root) : zip_(std::string(kPrefix), kAlignment) {
  std::map<StorageRef::Identity, std::size_t> numbers;
  PickleWriterOptions options;
  options.storage_key = [&](const StorageRef& storage) {
    const auto [at, fresh] = numbers.try_emplace(storage.identity(), storages_.size());
    if (fresh) storages_.push_back(storage);
    return std::to_string(at->second);
  };
  std::string pickle = write_pickle(root, options);
  // The order of torch.save.  PyTorch can compute the places of storages from it without reading
  // their headers.
  add_small("data.pkl", std::move(pickle));
  add_small(".format_version", "1");
  add_small(".storage_alignment", std::to_string(kAlignment));
  add_small("byteorder", "little");
  for (std::size_t i = 0; i < storages_.size(); ++i) {
    storage_records_.push_back(zip_.add("data/" + std::to_string(i), storage_bytes(i)));
  }
  add_small("version", "3\n");
}

void TorchSaveLayout::add_small(std::string_view name, std::string bytes) {
  const std::size_t number = zip_.add(name, bytes.size());
  zip_.set_crc(number, crc32(0, std::as_bytes(std::span(bytes))));
  small_.push_back({number, std::move(bytes)});
}

void TorchSaveLayout::write(const WriteStorage& write_storage, const ZipWriter::WriteAt& write_at) {
  std::vector<std::byte> run;
  std::uint64_t run_offset = 0;
  const auto end_run = [&] {
    if (!run.empty()) write_at(run_offset, run);
    run.clear();
  };
  const auto append = [&](std::uint64_t offset, std::span<const std::byte> bytes) {
    if (offset != run_offset + run.size()) {
      end_run();
      run_offset = offset;
    }
    run.insert(run.end(), bytes.begin(), bytes.end());
  };
  std::size_t next = 0;
  const auto append_small_before = [&](std::uint64_t offset) {
    for (; next < small_.size() && zip_.payload_offset(small_[next].number) < offset; ++next) {
      append(zip_.payload_offset(small_[next].number),
             std::as_bytes(std::span(small_[next].bytes)));
    }
  };
  std::size_t storage = 0;
  zip_.write_structure([&](std::uint64_t offset, std::span<const std::byte> bytes) {
    append_small_before(offset);
    append(offset, bytes);
    while (storage < storages_.size() && storage_bytes(storage) == 0) ++storage;
    if (storage == storages_.size() || storage_offset(storage) != run_offset + run.size()) return;
    end_run();
    zip_.set_crc(storage_records_[storage], write_storage(storage, storage_offset(storage)));
    ++storage;
  });
  end_run();
}

void TorchSaveLayout::write_rest(std::span<const std::uint32_t> storage_crcs,
                                 const ZipWriter::WriteAt& write_at) {
  write([&](std::size_t storage, std::uint64_t) { return storage_crcs[storage]; }, write_at);
}

std::string TorchSaveLayout::encoded() {
  std::string out;
  out.reserve(bytes());
  write_rest({}, [&](std::uint64_t, std::span<const std::byte> bytes) {
    out.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
  return out;
}

CopyResult TorchSaveWriter::write(OutputFile& file, const CopyOptions& options,
                                  std::uint64_t base) {
  std::vector<TargetPiece> pieces;
  pieces.reserve(layout_.storages().size());
  for (std::size_t i = 0; i < layout_.storages().size(); ++i) {
    const StorageRef& storage = layout_.storages()[i];
    TargetPiece piece = storage.tensor ? reference_piece(checkpoint_, *storage.tensor)
                                       : storage_piece(checkpoint_, storage);
    piece.file = &file;
    piece.offset = base + layout_.storage_offset(i);
    pieces.push_back(std::move(piece));
  }
  return copy_archive(layout_, pieces, file, options, base);
}

namespace {

// The parts of an archive between its storages, by their place.  The part after a storage begins
// with that storage's CRC-32, the only thing in it that is unknown before the copy; the last part
// has the CRC-32 of all storages.
class Gaps {
 public:
  Gaps(TorchSaveLayout& layout, OutputFile& file, std::uint64_t base)
      : layout_(layout), file_(file), base_(base) {
    const std::vector<std::uint32_t> unknown(layout.storages().size(), 0);
    layout.write_rest(unknown, [&](std::uint64_t offset, std::span<const std::byte> bytes) {
      parts_[offset].assign(bytes.begin(), bytes.end());
    });
    if (parts_.size() > 1) write(parts_.begin());
  }

  void storage_copied(std::size_t storage, std::uint32_t crc) {
    const auto part = parts_.find(layout_.storage_offset(storage) + layout_.storage_bytes(storage));
    if (part == parts_.end() || std::next(part) == parts_.end()) return;
    for (unsigned i = 0; i < 4; ++i) {
      part->second.at(zip::DataDescriptor::kCrcOffset + i) =
          static_cast<std::byte>(crc >> (8 * i) & 0xFFU);
    }
    write(part);
  }

  bool has(std::uint64_t offset) const { return parts_.contains(offset); }

 private:
  using Parts = std::map<std::uint64_t, std::vector<std::byte>>;

  void write(Parts::iterator part) {
    file_.write_at(base_ + part->first, part->second);
    parts_.erase(part);
  }

  const TorchSaveLayout& layout_;
  OutputFile& file_;
  const std::uint64_t base_;
  Parts parts_;
};

}  // namespace

CopyResult copy_archive(TorchSaveLayout& layout, std::span<const TargetPiece> pieces,
                        OutputFile& file, const CopyOptions& options, std::uint64_t base) {
  CopyOptions own = options;
  std::optional<Gaps> gaps;
  if (file.sent_by_parts()) {
    gaps.emplace(layout, file, base);
    own.on_piece = [&](std::size_t storage, std::uint32_t crc) {
      gaps->storage_copied(storage, crc);
    };
  }
  CopyResult copied = copy_pieces(pieces, own);
  layout.write_rest(copied.crcs, [&](std::uint64_t offset, std::span<const std::byte> bytes) {
    if (!gaps || gaps->has(offset)) file.write_at(base + offset, bytes);
  });
  return copied;
}

namespace {

// Bytes written at once: the checksum, computed just before, has brought them into the cache.
constexpr std::size_t kBlockBytes = 1U << 18U;

std::uint32_t write_payload(OutputStream& out, std::span<const std::byte> bytes) {
  std::uint32_t crc = 0;
  while (!bytes.empty()) {
    const auto block = bytes.first(std::min(kBlockBytes, bytes.size()));
    const std::uint32_t block_crc = crc32(0, block);
    crc = crc32_combine(crc, block_crc, block.size());
    out.write(block, block_crc);
    bytes = bytes.subspan(block.size());
  }
  return crc;
}

}  // namespace

void check_tensor_bytes(const OutputStream& out, std::uint64_t wanted, std::uint64_t found) {
  if (found == wanted) return;
  throw Error(ErrorCode::kShape, cat(out.file().name(), ": a tensor of ", wanted,
                                     " bytes is to be written, but has ", found));
}

void write_archive(OutputStream& out, TorchSaveLayout& layout, const StorageBytes& bytes_of) {
  layout.write(
      [&](std::size_t number, std::uint64_t) {
        const StorageRef& storage = layout.storages()[number];
        const auto bytes = bytes_of(storage);
        check_tensor_bytes(out, storage.numel * item_bytes(storage.dtype), bytes.size());
        return write_payload(out, bytes);
      },
      [&](std::uint64_t, std::span<const std::byte> bytes) { out.write(bytes); });
}

void write_torch_file(OutputFile& file, const Value& root, const TensorBytes& bytes, CacheUse use) {
  TorchSaveLayout archive(root);
  file.reserve(archive.bytes());
  OutputStream out(file, use);
  write_archive(out, archive,
                [&](const StorageRef& storage) { return bytes(storage.tensor.value().number); });
  out.flush();
}

}  // namespace fsdp::formats
