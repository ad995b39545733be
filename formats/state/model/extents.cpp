// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/extents.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

namespace fsdp::formats {
namespace {

// Parallel file systems lock and stripe in multiples of this size.
constexpr std::uint64_t kCutBytes = 1U << 20U;

// Pieces by their places in files.
class Places {
 public:
  explicit Places(std::span<const TargetPiece> pieces) : pieces_(pieces) {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (volume(pieces[i].box.view()) != 0)
        files_[pieces[i].file->member()].emplace_back(pieces[i].offset, i);
    }
    for (auto& [name, places] : files_) std::ranges::sort(places);
  }

  // Returns the run as elements of the piece that it lies in, if there is one.
  std::optional<WrittenRange> find(const JournalEntry::Run& run) const {
    const auto file = files_.find(run.file);
    if (file == files_.end()) return std::nullopt;
    auto place = std::ranges::upper_bound(file->second, std::pair(run.offset, SIZE_MAX));
    if (place == file->second.begin()) return std::nullopt;
    --place;
    const TargetPiece& piece = pieces_[place->second];
    const std::uint64_t item = item_bytes(piece.written_dtype());
    const std::uint64_t inside = run.offset - piece.offset;
    const std::uint64_t bytes = volume(piece.box.view()) * item;
    if (run.bytes == 0 || inside >= bytes || run.bytes > bytes - inside || inside % item != 0 ||
        run.bytes % item != 0) {
      return std::nullopt;
    }
    return WrittenRange{place->second, {inside / item, run.bytes / item}, run.crc};
  }

 private:
  std::span<const TargetPiece> pieces_;
  std::map<std::string_view, std::vector<std::pair<std::uint64_t, std::size_t>>> files_;
};

// Ranges of pieces that do not overlap.
class KeptRanges {
 public:
  // Adds all ranges, or none if one overlaps a range that is there.
  bool add(const std::vector<WrittenRange>& ranges) {
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      if (add(ranges[i])) continue;
      for (std::size_t j = 0; j < i; ++j) ranges_.erase(name_of(ranges[j]));
      return false;
    }
    return true;
  }
  std::vector<WrittenRange> take() {
    std::vector<WrittenRange> all;
    for (const auto& [name, range] : ranges_) all.push_back(range);
    return all;
  }

 private:
  using Name = std::pair<std::size_t, std::uint64_t>;
  static Name name_of(const WrittenRange& range) { return {range.piece, range.range.first}; }

  bool add(const WrittenRange& range) {
    const auto after = ranges_.lower_bound(name_of(range));
    const auto meets = [](const WrittenRange& a, const WrittenRange& b) {
      return a.piece == b.piece && a.range.first + a.range.count > b.range.first;
    };
    if (after != ranges_.end() && meets(range, after->second)) return false;
    if (after != ranges_.begin() && meets(std::prev(after)->second, range)) return false;
    ranges_.emplace_hint(after, name_of(range), range);
    return true;
  }

  std::map<Name, WrittenRange> ranges_;
};

}  // namespace

KeptWork kept_work(std::span<const TargetPiece> pieces, std::span<const JournalEntry> found) {
  KeptWork kept;
  if (found.empty()) return kept;
  const Places places(pieces);
  KeptRanges all;
  for (const JournalEntry& entry : found) {
    std::vector<WrittenRange> ranges;
    std::uint64_t bytes = 0;
    for (const JournalEntry::Run& run : entry.runs) {
      const auto range = places.find(run);
      if (!range) break;
      ranges.push_back(*range);
      bytes += run.bytes;
    }
    // Skips entries of other calls, and those that overlap an earlier entry.
    if (ranges.empty() || ranges.size() != entry.runs.size() || !all.add(ranges)) continue;
    for (PartialRead& read : partial_reads_from(entry.reads)) kept.reads.push_back(std::move(read));
    kept.unchecked_bytes += entry.unchecked_bytes;
    kept.bytes += bytes;
  }
  kept.ranges = all.take();
  return kept;
}

std::vector<PieceRange> rest_of(std::span<const TargetPiece> pieces,
                                std::span<const WrittenRange> kept) {
  std::vector<PieceRange> rest;
  auto next = kept.begin();
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    std::uint64_t at = 0;
    const auto add = [&](std::uint64_t end) {
      if (at < end) rest.push_back({i, {at, end - at}});
    };
    for (; next != kept.end() && next->piece == i; ++next) {
      add(next->range.first);
      at = next->range.first + next->range.count;
    }
    add(volume(pieces[i].box.view()));
  }
  return rest;
}

std::optional<Extent> ExtentCutter::next(std::uint64_t most_bytes) {
  if (at_ == work_.size()) return std::nullopt;
  Extent extent{work_[at_].piece, {}};
  std::uint64_t bytes = 0;
  for (; at_ < work_.size(); ++at_, done_ = 0) {
    const PieceRange& part = work_[at_];
    const std::size_t number = part.piece - extent.first_piece;
    if (number < extent.parts.size()) return extent;  // one part of each piece at a time
    const TargetPiece& piece = pieces_[part.piece];
    const std::uint64_t item = item_bytes(piece.written_dtype());
    const std::uint64_t first = part.range.first + done_;
    const std::uint64_t left = part.range.count - done_;
    const std::uint64_t room = most_bytes - bytes;
    std::uint64_t count = left;
    if (left > room / item) {
      const std::uint64_t begin = piece.offset + first * item;
      const std::uint64_t cut = (begin + room) / kCutBytes * kCutBytes;
      count = cut > begin ? (cut - begin) / item : room / item;
      if (count == 0 && !extent.parts.empty()) return extent;
      count = std::max<std::uint64_t>(1, count);
    }
    extent.parts.resize(number);
    extent.parts.push_back({first, count});
    bytes += count * item;
    if (count == left) continue;
    done_ += count;
    return extent;
  }
  return extent;
}

}  // namespace fsdp::formats
