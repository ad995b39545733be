// SPDX-License-Identifier: Apache-2.0
// The memory for data read ahead from stores: which blocks have memory, and which give it back when
// others need it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "formats/bytes/store/pace.h"
#include "formats/bytes/store/store.h"

namespace fsdp::formats {

// What is known of the connection to a server, or to one of its buckets.
struct Link {
  Pace pace;
  std::uint64_t running_bytes = 0;  // requested by threads now
};

// A file and its blocks that are on the way or at hand.  ReadAhead's lock guards the members after
// `file`.
struct AheadFile {
  // A range of the file that is read by one request.
  struct Block {
    enum class State { kWaiting, kReading, kReady, kFailed, kGone };
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint64_t order = 0;  // its place in the order of the hints, in bytes
    State state = State::kWaiting;
    bool kept = false;        // may be read more than once
    bool spent = false;       // read to its end
    std::uint64_t used = 0;   // bytes that were read, and those that are not wanted
    std::uint64_t reach = 0;  // end of the bytes that were read
    std::pair<std::uint64_t, std::uint64_t> key;  // its key in a shelf: the time of its last use
    std::shared_ptr<std::byte[]> bytes;
    std::uint64_t capacity = 0;  // of `bytes`
    std::exception_ptr failure;
    std::uint64_t size() const { return end - begin; }
  };

  AheadFile(const Store& from, std::string place, StoredFile what)
      : store(from), url(std::move(place)), file(std::move(what)) {}
  const Store& store;
  const std::string url;
  const StoredFile file;

  Link* link = nullptr;                                    // the connection to its store
  std::map<std::uint64_t, std::shared_ptr<Block>> blocks;  // by begin; they do not overlap
  std::uint64_t next = 0;                                  // the byte after the last read
  std::uint64_t window = 0;      // bytes to read ahead of sequential reads
  std::uint64_t window_end = 0;  // end of the range that was read ahead
  bool closed = false;
};

// Not thread-safe.
class ReadBuffers {
 public:
  using Bytes = std::shared_ptr<std::byte[]>;

  // Returns a buffer of exactly this size, or null if there is none.
  Bytes take(std::uint64_t size) noexcept {
    return size == size_ && count_ != 0 ? std::move(kept_[--count_]) : nullptr;
  }
  // Keeps the buffer, unless there are enough or someone else holds it.  Drops buffers of another
  // size.
  void give(Bytes buffer, std::uint64_t size) noexcept {
    if (!buffer || buffer.use_count() != 1) return;
    if (size != size_) drop();
    size_ = size;
    if (count_ < kept_.size()) kept_[count_++] = std::move(buffer);
  }
  // Returns the bytes of all kept buffers.
  std::uint64_t bytes() const noexcept { return count_ * size_; }
  void drop() noexcept {
    while (count_ != 0) kept_[--count_].reset();
  }

 private:
  std::array<Bytes, 48> kept_;
  std::size_t count_ = 0;
  std::uint64_t size_ = 0;
};

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
