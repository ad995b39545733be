// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/memory_reader.h"

#include <utility>

#include "formats/bytes/files/run_window.h"

namespace fsdp::formats {
namespace {

// If chunks interleave, large blocks cost less.
constexpr std::uint64_t kSlabBytes = 16U << 20U;

}  // namespace

std::vector<PartialRead> read_into_memory(std::span<const MemoryPiece> pieces, bool verify,
                                          const MemoryReadOptions& how) {
  std::vector<TargetPiece> sources;
  sources.reserve(pieces.size());
  for (const MemoryPiece& piece : pieces) sources.push_back(piece.piece);
  BlockOptions options;
  options.threads = how.threads;
  options.max_buffer_bytes = std::uint64_t{how.threads} * 2 * kSlabBytes;
  options.block_bytes = RunWindow::kRunBytes;
  options.max_slab_bytes = kSlabBytes;
  options.verify = verify;
  options.partial = !how.whole;
  options.cancelled = how.cancelled;
  options.target = [&](std::size_t number) { return pieces[number].target(); };
  const auto done = [&](std::size_t number) {
    if (pieces[number].done) pieces[number].done();
  };
  const std::span<const TargetPiece> sides[] = {sources};
  return read_blocks(
             sides, options, [](const ReadBlock&) {}, done)
      .partial;
}

}  // namespace fsdp::formats
