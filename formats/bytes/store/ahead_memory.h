// SPDX-License-Identifier: Apache-2.0
// The memory for data read ahead from stores: which blocks have memory, and which give it back when
// others need it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>

#include "formats/bytes/store/ahead_file.h"
#include "formats/bytes/store/read_buffers.h"

namespace fsdp::formats {

// Not thread-safe.
class AheadMemory {
 public:
  using Block = AheadFile::Block;
  using FilePointer = std::shared_ptr<AheadFile>;
  using BlockPointer = std::shared_ptr<Block>;
  using Entry = std::pair<FilePointer, BlockPointer>;

  // Sizes of requests: the smallest outweighs the header of its answer, the largest many round
  // trips.
  static constexpr std::uint64_t kLeastRequest = 256U << 10U;
  static constexpr std::uint64_t kMostRequest = 8U << 20U;

  // `most_at_once`: the requests of the usual size that must have room, beside a third as many that
  // have arrived.
  AheadMemory(const std::atomic<std::uint64_t>& budget, unsigned most_at_once)
      : budget_(budget), most_at_once_(most_at_once) {}

  // Returns the usual size of a request.
  std::uint64_t request_bytes() const;
  // Returns the end of the request that begins at `from` in a range that ends at `to`.  The last
  // request of a range may be half as large again, since a short rest is not worth a request of its
  // own.
  std::uint64_t request_end(std::uint64_t from, std::uint64_t to) const;

  // Makes room for `bytes` bytes by freeing blocks that are no longer expected to be read.  Returns
  // whether there is room.
  bool make_room(std::uint64_t bytes);
  // Records that the block's request begins, even without room.  Sets its `bytes` to a used buffer,
  // or to null: the caller must then allocate `capacity` bytes.
  void begin(Block& block);
  // Records that the block's bytes are at hand.  Throws: std::bad_alloc; nothing has changed then.
  void arrived(const FilePointer& file, const BlockPointer& block);
  // Records that these bytes of a block at hand were read.
  void used(const FilePointer& file, const BlockPointer& block, std::uint64_t offset,
            std::uint64_t bytes);
  // Records that `bytes` bytes were read without a block.
  void passed(std::uint64_t bytes) { taken_ += bytes; }
  // Keeps blocks of the range that were read once, headers before data, until the hints before this
  // one are read.  `waiting`: the bytes of these hints that wait for memory.
  void want_again(AheadFile& file, std::uint64_t from, std::uint64_t to, std::uint64_t waiting);
  // Removes a block whose request has begun from its file, and frees its memory.
  void forget(AheadFile& file, const BlockPointer& block);
  // Frees blocks that were read to their end, except the latest, which may be read again, headers
  // first, then data.  If more were kept, they would leave the processor's caches before their
  // memory is reused.
  void drop_spent();
  // Returns the bytes of blocks on the way or at hand, and of buffers for the next ones.
  std::uint64_t bytes() const { return held_bytes_ + buffers_.bytes(); }
  // Frees the buffers if no block has memory.
  void drop_buffers();

 private:
  // Blocks by their last use.
  using Shelf = std::map<std::pair<std::uint64_t, std::uint64_t>, Entry>;
  Shelf& shelf_of(const Block& block) {
    return block.kept && block.reach != 0 ? looked_at_ : at_hand_;
  }
  void shelve_again(Block& block, Shelf& from, std::uint64_t when);

  const std::atomic<std::uint64_t>& budget_;
  const unsigned most_at_once_;
  std::uint64_t held_bytes_ = 0;   // of blocks that are on the way or at hand
  std::uint64_t spent_bytes_ = 0;  // of those that were read to their end
  std::uint64_t taken_ = 0;        // bytes that were read so far: the clock
  std::uint64_t number_ = 0;       // tells apart blocks of equal times
  Shelf at_hand_;
  Shelf looked_at_;  // kept blocks that were read at least once
  std::uint64_t looked_at_bytes_ = 0;
  std::deque<Entry> spent_;  // the oldest first
  ReadBuffers buffers_;
};

}  // namespace fsdp::formats
