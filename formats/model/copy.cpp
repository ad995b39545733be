// SPDX-License-Identifier: Apache-2.0
#include "formats/model/copy.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "formats/base/crc32.h"
#include "formats/base/crc_ledger.h"
#include "formats/base/error.h"
#include "formats/base/text.h"
#include "formats/files/output_windows.h"
#include "formats/model/block_schedule.h"
#include "formats/model/division.h"

namespace fsdp::formats {
namespace {

// Straight runs move in blocks of this size: large enough that the cost of calls is negligible,
// small enough to stay in a core's second-level cache between the read, the CRC and the write.
constexpr std::uint64_t kRunBlockBytes = 1U << 20U;
constexpr std::uint64_t kMinBlockBytes = 64U << 10U;
// Pieces whose chunks interleave are assembled in slabs of at most this size, with scratch of the
// same size.
constexpr std::uint64_t kMaxSlabBytes = 16U << 20U;
// Blocks of one file that wait for the thread that writes it, and the block being written.
constexpr unsigned kKeptBlocks = WriteTurns::kMostWaiting + 1;
// One part in this many of the memory is for writes past the page cache.
constexpr std::uint64_t kWindowsShare = 3;

std::uint64_t bytes_of(const TargetPiece& piece, std::uint64_t elements) {
  return elements * item_bytes(piece.written_dtype());
}

// The CRC of the bytes from `begin` on, if the ledger has exactly these.
std::optional<std::uint32_t> crc_of(const CrcLedger& ledger, std::uint64_t begin,
                                    std::uint64_t bytes) {
  const auto runs = ledger.runs();
  if (runs.size() != 1 || runs[0].begin != begin || runs[0].bytes != bytes) return std::nullopt;
  return runs[0].crc;
}

// Completes the CRCs of this member's parts to those of whole pieces, and tells the files of the
// leader those of the others.
void join_crcs(std::span<const TargetPiece> pieces, const Division& division, Team& team,
               CopyResult& result) {
  Packed mine;
  division.for_each(team.rank(),
                    [&](std::size_t piece, ElementRange) { mine.number(result.crcs[piece]); });
  const std::vector<std::string> all = team.exchange("checksums of the output", mine.take());
  std::fill(result.crcs.begin(), result.crcs.end(), 0);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    Unpacked fields(all[rank]);
    division.for_each(rank, [&](std::size_t number, ElementRange range) {
      const TargetPiece& piece = pieces[number];
      const auto crc = static_cast<std::uint32_t>(fields.number());
      const std::uint64_t bytes = bytes_of(piece, range.count);
      result.crcs[number] = crc32_combine(result.crcs[number], crc, bytes);
      if (rank != team.rank())
        piece.file->add_crc(piece.offset + bytes_of(piece, range.first), bytes, crc);
    });
  }
  result.bytes = 0;
  for (const TargetPiece& piece : pieces) result.bytes += bytes_of(piece, volume(piece.box.view()));
}

}  // namespace

CopyResult copy_pieces(std::span<const TargetPiece> pieces, const CopyOptions& options) {
  std::optional<Division> division;
  if (options.team != nullptr) {
    agree_on_pieces(*options.team, pieces);
    division.emplace(divide_copy(pieces, options.team->size()));
  }
  const auto part_of = [&](std::size_t number) {
    return division ? division->range(options.team->rank(), number)
                    : ElementRange{0, volume(pieces[number].box.view())};
  };
  CopyResult result;
  result.crcs.resize(pieces.size(), 0);
  std::mutex mutex;
  std::map<std::size_t, CrcLedger> ledgers;  // of the pieces being written

  // A part of the memory is for writing.
  const std::uint64_t window_bytes =
      OutputWindows::bytes_of(options.max_buffer_bytes / kWindowsShare);
  OutputWindows windows(window_bytes);
  BlockOptions blocks;
  blocks.threads = options.threads;
  blocks.max_buffer_bytes = options.max_buffer_bytes - window_bytes;
  // Little memory does not mean fewer threads, as long as blocks stay worth a call.
  const std::uint64_t share =
      blocks.max_buffer_bytes / (std::uint64_t{4} * std::max(1U, options.threads));
  blocks.block_bytes = std::clamp(share, kMinBlockBytes, kRunBlockBytes);
  blocks.max_slab_bytes = kMaxSlabBytes;
  // A single thread has to write its blocks itself.
  blocks.kept_blocks = options.threads > 1 ? kKeptBlocks : 0;
  blocks.cancelled = options.cancelled;
  blocks.team = options.team;
  if (division) blocks.part = part_of;
  const auto write = [&](const ReadBlock& block) {
    const TargetPiece& piece = pieces[block.piece];
    const std::uint64_t at = block.first * item_bytes(piece.written_dtype());
    const std::uint32_t crc = block.crc ? *block.crc : crc32(0, block.bytes[0]);
    windows.write(*piece.file, {piece.offset + at, block.bytes[0], block.owner}, crc);
    const std::lock_guard lock(mutex);
    ledgers[block.piece].add(at, block.bytes[0].size(), crc);
    result.bytes += block.bytes[0].size();
    if (options.on_progress) {
      options.on_progress(options.team != nullptr ? options.team->progress(result.bytes)
                                                  : result.bytes);
    }
  };
  const auto piece_done = [&](std::size_t number) {
    const TargetPiece& piece = pieces[number];
    const ElementRange part = part_of(number);
    const std::lock_guard lock(mutex);
    const std::optional<std::uint32_t> crc =
        part.count == 0
            ? 0U
            : crc_of(ledgers[number], bytes_of(piece, part.first), bytes_of(piece, part.count));
    if (!crc) {
      throw Error(ErrorCode::kHole,
                  cat(quote(piece.key, 200), ": blocks do not tile ", box_text(piece.box.view())));
    }
    result.crcs[number] = *crc;
    ledgers.erase(number);
  };
  const std::span<const TargetPiece> sides[] = {pieces};
  result.unchecked_bytes = read_blocks(sides, blocks, write, piece_done).unchecked_bytes;
  windows.flush();
  if (division) join_crcs(pieces, *division, *options.team, result);
  return result;
}

}  // namespace fsdp::formats
