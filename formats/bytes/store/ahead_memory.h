// SPDX-License-Identifier: Apache-2.0
// The memory for what is read ahead of stores: which blocks have it, and which of them give it back
// when others need it.
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

  // Sizes of requests: the smallest is worth its answer's header, the largest many round trips.
  static constexpr std::uint64_t kLeastRequest = 256U << 10U;
  static constexpr std::uint64_t kMostRequest = 8U << 20U;

  // `most_at_once`: requests of the usual size that have room, and a third of them again that have
  // come.
  AheadMemory(const std::atomic<std::uint64_t>& budget, unsigned most_at_once)
      : budget_(budget), most_at_once_(most_at_once) {}

  // The usual size of a request.
  std::uint64_t request_bytes() const;
  // Where a request ends that begins a range: what is left of the range is added to the last one
  // up to half as much again, since the end of an item is not worth one of its own.
  std::uint64_t request_end(std::uint64_t from, std::uint64_t to) const;

  // Makes room for so many bytes, by giving back blocks that nobody came for.  Returns whether
  // there is.
  bool make_room(std::uint64_t bytes);
  // The block's request begins, with room or without.  Its `bytes` are a buffer that was used
  // before, or null: one of `capacity` is needed.
  void begin(Block& block);
  // The block's bytes are at hand.  Throws: std::bad_alloc; nothing has changed then.
  void arrived(const FilePointer& file, const BlockPointer& block);
  // These bytes of a block at hand were read.
  void used(const FilePointer& file, const BlockPointer& block, std::uint64_t offset,
            std::uint64_t bytes);
  // So many bytes were read that no block had.
  void passed(std::uint64_t bytes) { taken_ += bytes; }
  // Keeps what was read once already, headers before data, until the hints before this one, of so
  // many bytes that wait for memory, were read.
  void want_again(AheadFile& file, std::uint64_t from, std::uint64_t to, std::uint64_t waiting);
  // Takes a block that was begun out of its file, and gives back its memory.
  void forget(AheadFile& file, const BlockPointer& block);
  // Gives back what was read to its end, but for the last: it may be read again, headers first,
  // then data.  More would leave the caches of the processor before their memory is used again.
  void drop_spent();
  // Of blocks that are on the way or at hand, and of buffers for the next ones.
  std::uint64_t bytes() const { return held_bytes_ + buffers_.bytes(); }
  // Keeps no memory while no block has any.
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
  std::uint64_t number_ = 0;       // of the last block at hand, since times may be equal
  Shelf at_hand_;
  Shelf looked_at_;  // those that are read more than once, from the first time on
  std::uint64_t looked_at_bytes_ = 0;
  std::deque<Entry> spent_;  // the oldest first
  ReadBuffers buffers_;
};

}  // namespace fsdp::formats
