// SPDX-License-Identifier: Apache-2.0
#include "formats/families/torch/archive_copy.h"

#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <vector>

#include "formats/containers/zip/records.h"

namespace fsdp::formats {
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

}  // namespace fsdp::formats
