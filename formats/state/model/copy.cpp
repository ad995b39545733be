// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/copy.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "formats/bytes/base/crc32.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/outputs/windows.h"
#include "formats/state/model/block_schedule.h"
#include "formats/state/model/division.h"
#include "formats/state/model/extents.h"
#include "formats/state/model/piece_reader.h"

namespace fsdp::formats {
namespace {

// Straight runs move in blocks of this size: large enough that the cost of calls is negligible,
// small enough to stay in a core's second-level cache between the read, the CRC and the write.
constexpr std::uint64_t kRunBlockBytes = 1U << 20U;
constexpr std::uint64_t kLeastBlockBytes = 64U << 10U;
// Pieces whose chunks interleave are assembled in slabs of at most this size, with scratch of the
// same size.
constexpr std::uint64_t kMaxSlabBytes = 16U << 20U;
// The blocks of one file that wait for the thread that writes the file, and the block being
// written; and the blocks of each further file that is written at the same time.
constexpr unsigned kKeptBlocks = WriteTurns::kMostWaiting + 1;
constexpr unsigned kKeptBlocksOfOthers = 2;
// One thread writes a file, and one or two read what it writes.
constexpr std::size_t kThreadsPerFile = 2;
// Windows of more files would be written before they are full.
constexpr std::size_t kMostFilesAtOnce = OutputWindows::kMostWindows / 2;
// One part in this many of the memory is for writes past the page cache.
constexpr std::uint64_t kWindowsShare = 3;

std::uint64_t bytes_of(const TargetPiece& piece, std::uint64_t elements) {
  return elements * item_bytes(piece.written_dtype());
}

// Returns the CRC of the bytes from `begin` on, if the ledger has exactly these.
std::optional<std::uint32_t> crc_of(const CrcLedger& ledger, std::uint64_t begin,
                                    std::uint64_t bytes) {
  const auto runs = ledger.runs();
  if (runs.size() != 1 || runs[0].begin != begin || runs[0].bytes != bytes) return std::nullopt;
  return runs[0].crc;
}

// Gives the file the checksum of bytes that were written without one.
void tell_file(std::span<const TargetPiece> pieces, const WrittenRange& range) {
  const TargetPiece& piece = pieces[range.piece];
  piece.file->add_crc(piece.offset + bytes_of(piece, range.range.first),
                      bytes_of(piece, range.range.count), range.crc);
}

// Returns the parts of the work that `rank` has.
std::vector<PieceRange> share_of(const Division& division, std::span<const PieceRange> work,
                                 std::size_t rank) {
  std::vector<PieceRange> share;
  division.for_each(rank, [&](std::size_t part, ElementRange range) {
    share.push_back({work[part].piece, {work[part].range.first + range.first, range.count}});
  });
  return share;
}

// Exchanges the CRCs of the parts of all members.  `own`: the ranges that this member wrote of its
// share, in order.  Returns the parts of all members, and gives their CRCs to the leader's files.
std::vector<WrittenRange> join_crcs(std::span<const TargetPiece> pieces, const Division& division,
                                    std::span<const PieceRange> work,
                                    std::span<const WrittenRange> own, Team& team) {
  Packed mine;
  auto next = own.begin();
  for (const PieceRange& part : share_of(division, work, team.rank())) {
    std::uint32_t crc = 0;
    for (std::uint64_t count = 0; count < part.range.count; count += next++->range.count)
      crc = crc32_combine(crc, next->crc, bytes_of(pieces[part.piece], next->range.count));
    mine.number(crc);
  }
  const std::vector<std::string> all = team.exchange("checksums of the output", mine.take());
  std::vector<WrittenRange> joined;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    Unpacked fields(all[rank]);
    for (const PieceRange& part : share_of(division, work, rank)) {
      joined.push_back({part.piece, part.range, static_cast<std::uint32_t>(fields.number())});
      if (rank != team.rank()) tell_file(pieces, joined.back());
    }
  }
  return joined;
}

// Returns the CRC of each piece, from the CRCs of ranges that tile it.
std::vector<std::uint32_t> piece_crcs(std::span<const TargetPiece> pieces,
                                      std::vector<WrittenRange> ranges) {
  std::ranges::sort(ranges, {}, [](const WrittenRange& range) {
    return std::pair(range.piece, range.range.first);
  });
  std::vector<std::uint32_t> crcs(pieces.size(), 0);
  auto next = ranges.begin();
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    std::uint64_t end = 0;
    for (; next != ranges.end() && next->piece == i && next->range.first == end; ++next) {
      crcs[i] = crc32_combine(crcs[i], next->crc, bytes_of(pieces[i], next->range.count));
      end += next->range.count;
    }
    if (end != volume(pieces[i].box.view())) {
      throw Error(ErrorCode::kHole, quote(pieces[i].key, 200), ": blocks do not tile ",
                  box_text(pieces[i].box.view()));
    }
  }
  return crcs;
}

// Returns what an earlier run has written of the pieces.
// Throws: kMismatch if its journals cannot be understood.
KeptWork kept_of(std::span<const TargetPiece> pieces, const Journal& journal) {
  try {
    return kept_work(pieces, journal.found());
  } catch (const Error& error) {
    throw journal.damaged(error.what());
  }
}

// Returns the entry of the journal for an extent that was written.
JournalEntry entry_of(std::span<const TargetPiece> pieces, std::span<const WrittenRange> written,
                      const StorageChecks& checks) {
  JournalEntry entry;
  for (const WrittenRange& range : written) {
    const TargetPiece& piece = pieces[range.piece];
    entry.runs.push_back({piece.file->member(), piece.offset + bytes_of(piece, range.range.first),
                          bytes_of(piece, range.range.count), range.crc});
  }
  entry.unchecked_bytes = checks.unchecked_bytes();
  entry.reads = text_of(checks.partial());
  return entry;
}

// Returns the bytes of a stripe.  The leader, which has the files open, tells the others.
std::uint64_t stripe_bytes(std::span<const TargetPiece> pieces, Team& team) {
  if (team.alone()) return 0;
  std::uint64_t mine = 0;
  if (team.leads() && !pieces.empty()) mine = pieces[0].file->stripe_bytes();
  return Unpacked(team.exchange("stripes", Packed().number(mine).take()).front()).number();
}

std::size_t files_of(std::span<const TargetPiece> pieces) {
  std::set<const OutputFile*> files;
  for (const TargetPiece& piece : pieces) files.insert(piece.file);
  return files.size();
}

// Returns how many files to write at once.  Files of a store are written one after the other: their
// parts wait on this machine until they are whole.
std::size_t files_at_once(std::span<const TargetPiece> pieces, unsigned threads) {
  if (pieces.empty() || pieces[0].file->sent_by_parts()) return 1;
  const std::size_t most = std::min(files_of(pieces), kMostFilesAtOnce);
  return std::clamp<std::size_t>(threads / kThreadsPerFile, 1, most);
}

// Copies parts of pieces: the work of one process.
class Copying {
 public:
  Copying(std::span<const TargetPiece> pieces, const CopyOptions& options, std::uint64_t kept_bytes)
      : pieces_(pieces),
        options_(options),
        kept_bytes_(kept_bytes),
        files_at_once_(files_at_once(pieces, options.threads)),
        // A part of the memory is for writing.
        window_bytes_(OutputWindows::bytes_of(options.max_buffer_bytes / kWindowsShare)),
        windows_(window_bytes_) {}

  // Reads and writes the extent, and returns when the files have its bytes.  Ranges come in order.
  std::vector<WrittenRange> copy(const Extent& extent, StorageChecks& checks) {
    BlockOptions blocks;
    blocks.threads = options_.threads;
    blocks.max_buffer_bytes = options_.max_buffer_bytes - window_bytes_;
    blocks.files_at_once = files_at_once_;
    // With little memory blocks become smaller rather than threads fewer, as long as blocks stay
    // worth a call.
    const std::uint64_t share =
        blocks.max_buffer_bytes / (std::uint64_t{4} * std::max(1U, options_.threads));
    blocks.block_bytes = std::clamp(share, kLeastBlockBytes, kRunBlockBytes);
    blocks.max_slab_bytes = kMaxSlabBytes;
    // A single thread has to write its blocks itself.
    blocks.kept_blocks =
        options_.threads > 1
            ? kKeptBlocks + kKeptBlocksOfOthers * static_cast<unsigned>(files_at_once_ - 1)
            : 0;
    blocks.cancelled = options_.cancelled;
    blocks.checks = &checks;
    blocks.part = [&](std::size_t number) { return extent.parts[number]; };
    const std::span<const TargetPiece> pieces =
        pieces_.subspan(extent.first_piece, extent.parts.size());
    std::vector<std::uint32_t> crcs(extent.parts.size());
    const auto piece_done = [&](std::size_t number) {
      const std::lock_guard lock(mutex_);
      crcs[number] = take_crc(pieces[number], number, extent.parts[number]);
      if (options_.on_piece && extent.parts[number].count != 0)
        options_.on_piece(extent.first_piece + number, crcs[number]);
    };
    const std::span<const TargetPiece> sides[] = {pieces};
    read_blocks(
        sides, blocks, [&](const ReadBlock& block) { write(pieces[block.piece], block); },
        piece_done);
    windows_.flush();
    std::vector<WrittenRange> written;
    for (std::size_t i = 0; i < crcs.size(); ++i) {
      if (extent.parts[i].count != 0)
        written.push_back({extent.first_piece + i, extent.parts[i], crcs[i]});
    }
    return written;
  }

 private:
  void write(const TargetPiece& piece, const ReadBlock& block) {
    const std::uint64_t at = bytes_of(piece, block.first);
    const std::uint32_t crc = block.crc ? *block.crc : crc32(0, block.bytes[0]);
    windows_.write(*piece.file, {piece.offset + at, block.bytes[0], block.owner}, crc);
    const std::lock_guard lock(mutex_);
    ledgers_[block.piece].add(at, block.bytes[0].size(), crc);
    bytes_ += block.bytes[0].size();
    if (options_.on_progress) options_.on_progress(kept_bytes_ + options_.team->progress(bytes_));
  }

  // Requires: mutex_ is held.
  std::uint32_t take_crc(const TargetPiece& piece, std::size_t number, ElementRange part) {
    if (part.count == 0) return 0;
    const auto crc =
        crc_of(ledgers_[number], bytes_of(piece, part.first), bytes_of(piece, part.count));
    if (!crc) {
      throw Error(ErrorCode::kHole, quote(piece.key, 200), ": blocks do not tile ",
                  box_text(piece.box.view()));
    }
    ledgers_.erase(number);
    return *crc;
  }

  std::span<const TargetPiece> pieces_;
  const CopyOptions& options_;
  std::uint64_t kept_bytes_;
  std::size_t files_at_once_;
  std::uint64_t window_bytes_;
  OutputWindows windows_;
  std::mutex mutex_;
  std::map<std::size_t, CrcLedger> ledgers_;  // of the extent's pieces being written
  std::uint64_t bytes_ = 0;                   // written
};

}  // namespace

CopyResult& CopyResult::operator+=(const CopyResult& part) {
  bytes += part.bytes;
  unchecked_bytes += part.unchecked_bytes;
  kept_bytes += part.kept_bytes;
  return *this;
}

CopyOptions CopyOptions::after(const CopyResult& before) const {
  CopyOptions options = *this;
  if (on_progress) {
    options.on_progress = [this, bytes = before.bytes](std::uint64_t more) {
      on_progress(bytes + more);
    };
  }
  return options;
}

CopyResult copy_pieces(std::span<const TargetPiece> pieces, const CopyOptions& options) {
  Team& team = *options.team;
  Journal& journal = *options.journal;
  agree_on_pieces(team, pieces);
  const KeptWork kept = kept_of(pieces, journal);
  const std::vector<PieceRange> work = rest_of(pieces, kept.ranges);
  const Division division = divide_copy(pieces, work, team.size(), stripe_bytes(pieces, team));
  const std::vector<PieceRange> share = share_of(division, work, team.rank());
  StorageChecks checks(true);
  // Only one member of a team restores the reads of the earlier run; all members join theirs in the
  // end.
  if (team.leads()) checks.restore(kept.reads, kept.unchecked_bytes);
  std::vector<WrittenRange> own;
  // Pieces without bytes are in no extent.
  for (std::size_t i = 0; options.on_piece && i < pieces.size(); ++i) {
    if (volume(pieces[i].box.view()) == 0) options.on_piece(i, 0);
  }
  {
    Copying copying(pieces, options, kept.bytes);
    ExtentCutter cutter(pieces, share);
    const std::size_t files = files_of(pieces);
    while (const auto extent = cutter.next(journal.room(files))) {
      StorageChecks of_extent(true);
      const std::vector<WrittenRange> written = copying.copy(*extent, of_extent);
      if (journal.records()) {
        std::set<OutputFile*> written_files;
        for (const WrittenRange& range : written) written_files.insert(pieces[range.piece].file);
        journal.add(entry_of(pieces, written, of_extent), written_files);
      }
      own.insert(own.end(), written.begin(), written.end());
      checks.absorb(of_extent);
    }
  }
  checks.join(team);
  checks.finish(pieces, options.cancelled);
  CopyResult result;
  result.unchecked_bytes = checks.unchecked_bytes();
  std::vector<WrittenRange> all =
      team.alone() ? std::move(own) : join_crcs(pieces, division, work, own, team);
  for (const WrittenRange& range : kept.ranges) {
    tell_file(pieces, range);
    all.push_back(range);
  }
  result.crcs = piece_crcs(pieces, std::move(all));
  for (const TargetPiece& piece : pieces) result.bytes += bytes_of(piece, volume(piece.box.view()));
  result.kept_bytes = kept.bytes;
  return result;
}

}  // namespace fsdp::formats
