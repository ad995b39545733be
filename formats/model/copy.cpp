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

}  // namespace

CopyResult copy_pieces(std::span<const TargetPiece> pieces, const CopyOptions& options) {
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
  const auto write = [&](const ReadBlock& block) {
    const TargetPiece& piece = pieces[block.piece];
    const std::uint64_t at = block.first * item_bytes(piece.written_dtype());
    const std::uint32_t crc = block.crc ? *block.crc : crc32(0, block.bytes[0]);
    windows.write(*piece.file, {piece.offset + at, block.bytes[0], block.owner}, crc);
    const std::lock_guard lock(mutex);
    ledgers[block.piece].add(at, block.bytes[0].size(), crc);
    result.bytes += block.bytes[0].size();
    if (options.on_progress) options.on_progress(result.bytes);
  };
  const auto piece_done = [&](std::size_t number) {
    const TargetPiece& piece = pieces[number];
    const std::uint64_t bytes = volume(piece.box.view()) * item_bytes(piece.written_dtype());
    const std::lock_guard lock(mutex);
    const auto crc = ledgers[number].total(bytes);
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
  return result;
}

}  // namespace fsdp::formats
