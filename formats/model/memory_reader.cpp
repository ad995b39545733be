// SPDX-License-Identifier: Apache-2.0
#include "formats/model/memory_reader.h"

#include <algorithm>
#include <memory>

#include "formats/base/cast.h"
#include "formats/base/run_window.h"
#include "formats/model/piece_reader.h"

namespace fsdp::formats {
namespace {

// Large enough for few reads, small enough that the checksum of a block finds it in the cache.
constexpr std::uint64_t kBlockBytes = 1U << 18U;
// Where chunks interleave, large blocks cost less.
constexpr std::uint64_t kSlabBytes = 16U << 20U;

// Memory that is taken once it is needed.
class Buffer {
 public:
  std::span<std::byte> get() {
    if (!memory_) memory_ = std::make_unique_for_overwrite<std::byte[]>(kSlabBytes);
    return {memory_.get(), kSlabBytes};
  }

 private:
  std::unique_ptr<std::byte[]> memory_;
};

}  // namespace

std::vector<PartialRead> read_into_memory(std::span<const MemoryPiece> pieces, bool verify) {
  StorageChecks checks(verify);
  Buffer scratch;
  Buffer uncast;
  RunWindow window;
  for (const auto& [piece, out, alone] : pieces) {
    const std::uint64_t numel = volume(piece.box.view());
    if (numel == 0) continue;
    const PieceReader reader(piece, checks);
    const bool casts = piece.written_dtype() != piece.dtype;
    const std::uint64_t item = item_bytes(piece.dtype);
    const std::uint64_t written = item_bytes(piece.written_dtype());
    const std::uint64_t step = (reader.straight() ? kBlockBytes : kSlabBytes) / item;
    for (std::uint64_t first = 0; first < numel; first += step) {
      const std::uint64_t count = std::min(step, numel - first);
      const auto target = out.subspan(first * written, count * written);
      const auto into = casts ? uncast.get().first(count * item) : target;
      reader.read(first, into, reader.straight() ? std::span<std::byte>() : scratch.get(),
                  alone ? &window : nullptr);
      if (casts) cast(piece.dtype, into, piece.written_dtype(), target);
    }
    reader.settle();
  }
  return checks.take_partial();
}

}  // namespace fsdp::formats
