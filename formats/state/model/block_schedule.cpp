// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/block_schedule.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/bytes/base/buffer_pool.h"
#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/threads.h"
#include "formats/bytes/files/run_window.h"
#include "formats/state/model/copy.h"
#include "formats/state/model/piece_reader.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kMaxSides = 2;
constexpr std::uint64_t kMinBlockBytes = 16;  // the widest element
// The number of pieces that get hints ahead.  A small read waits some ms behind the large reads of
// several threads; meanwhile each thread may come to its next piece.
constexpr std::size_t kPiecesExpected = 16;

// Returns the numbers of all pieces in an order that advances up to `files_at_once` files equally,
// by bytes: each of them can have a thread that writes it (write_turns.h).  The pieces of one file
// keep their order, and files begin in the order of their first pieces.
// Requires: files_at_once >= 1.
std::vector<std::size_t> in_turns(std::span<const TargetPiece> pieces, std::size_t files_at_once);

std::vector<std::size_t> in_turns(std::span<const TargetPiece> pieces, std::size_t files_at_once) {
  std::vector<std::size_t> order(pieces.size());
  if (files_at_once == 1) {
    std::iota(order.begin(), order.end(), std::size_t{0});
    return order;
  }
  std::unordered_map<const OutputFile*, std::size_t> numbers;
  std::vector<std::vector<std::size_t>> files;  // the pieces of each
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto [file, added] = numbers.emplace(pieces[i].file, files.size());
    if (added) files.emplace_back();
    files[file->second].push_back(i);
  }
  order.clear();
  // The bytes that each begun file has reached, and the file.  A new file begins at the bytes that
  // the last chosen file had reached.
  std::set<std::pair<std::uint64_t, std::size_t>> advancing;
  std::vector<std::size_t> next(files.size(), 0);
  std::size_t begun = 0;
  std::uint64_t reached = 0;
  while (order.size() < pieces.size()) {
    while (begun < files.size() && advancing.size() < files_at_once)
      advancing.emplace(reached, begun++);
    const auto [bytes, file] = *advancing.begin();
    advancing.erase(advancing.begin());
    const std::size_t piece = files[file][next[file]++];
    order.push_back(piece);
    reached = bytes;
    if (next[file] == files[file].size()) continue;
    const std::uint64_t own =
        volume(pieces[piece].box.view()) * item_bytes(pieces[piece].written_dtype());
    advancing.emplace(bytes + own, file);
  }
  return order;
}

// A piece that is being read, on every side.
struct OpenPiece {
  std::size_t number = 0;
  std::array<std::unique_ptr<PieceReader>, kMaxSides> sides;
  BlockTarget target;      // nothing if it goes to buffers
  std::uint64_t next = 0;  // the first element that no task has
  std::uint64_t end = 0;   // the element after the last one to read
  std::uint64_t block_numel = 0;
  std::uint64_t task_numel = 0;  // a multiple of block_numel
  std::uint64_t open_tasks = 0;
};

struct Task {
  std::shared_ptr<OpenPiece> piece;
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

std::uint64_t widest_item(const TargetPiece& piece) {
  return std::max(item_bytes(piece.dtype), item_bytes(piece.written_dtype()));
}

// Hands out the tasks of the pieces that are being read, in turns.
class Schedule {
 public:
  using Sides = std::span<const std::span<const TargetPiece>>;

  Schedule(Sides sides, const BlockOptions& options, std::uint64_t slab_bytes,
           const std::function<void(std::size_t)>& piece_done)
      : sides_(sides),
        options_(options),
        slab_bytes_(slab_bytes),
        piece_done_(piece_done),
        order_(in_turns(sides[0], options.files_at_once)) {
    for (std::size_t s = 0; s < sides.size(); ++s) {
      if (s == 0 && options.checks != nullptr) {
        checks_[s] = options.checks;
      } else {
        own_checks_[s] = std::make_unique<StorageChecks>(options.verify);
        checks_[s] = own_checks_[s].get();
      }
    }
  }

  std::optional<Task> next() {
    const std::lock_guard lock(mutex_);
    if (stopped_) return std::nullopt;
    if (options_.cancelled && options_.cancelled())
      throw Error(ErrorCode::kInterrupted, "interrupted");
    while (next_ < order_.size() && (open_.empty() || open_.size() < most_open())) open_next();
    if (open_.empty()) return std::nullopt;
    const std::shared_ptr<OpenPiece> piece = std::move(open_.front());
    open_.pop_front();
    const std::uint64_t count = std::min(piece->task_numel, piece->end - piece->next);
    Task task{piece, piece->next, count};
    piece->next += count;
    if (piece->next != piece->end) open_.push_back(piece);
    return task;
  }

  void done(OpenPiece& piece) {
    const std::lock_guard lock(mutex_);
    if (--piece.open_tasks != 0) return;
    for (std::size_t s = 0; s < sides_.size(); ++s) piece.sides[s]->settle();
    piece_done_(piece.number);
  }

  void stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }

  // Called after all tasks.
  BlockResult finish(std::span<std::byte> buffer) {
    BlockResult result;
    for (std::size_t s = 0; s < sides_.size(); ++s) {
      if (!own_checks_[s]) continue;
      if (options_.partial) {
        result.partial = checks_[s]->take_partial();
      } else {
        checks_[s]->join(*options_.team);
        checks_[s]->finish(buffer, options_.cancelled);
      }
      result.unchecked_bytes += checks_[s]->unchecked_bytes();
    }
    return result;
  }

 private:
  std::size_t most_open() const { return memory_ahead_ ? 1 : options_.files_at_once; }

  void open_next() {
    bool more = memory_ahead_;
    for (; expected_ < order_.size() && (more || expected_ < next_ + kPiecesExpected);
         ++expected_) {
      const std::size_t number = order_[expected_];
      ElementRange hinted{0, volume(sides_[0][number].box.view())};
      if (options_.part) hinted = options_.part(number);
      if (hinted.count == 0) continue;
      more = false;
      for (const auto& side : sides_)
        more = (side[number].expect && side[number].expect(hinted)) || more;
      memory_ahead_ = memory_ahead_ || more;
    }
    const std::size_t number = order_[next_++];
    ElementRange part{0, volume(sides_[0][number].box.view())};
    if (options_.part) part = options_.part(number);
    if (part.count == 0) {
      if (!options_.part) piece_done_(number);
      return;
    }
    auto piece = std::make_shared<OpenPiece>();
    piece->number = number;
    piece->end = part.first + part.count;
    std::uint64_t item = 1;
    bool straight = true;
    for (std::size_t s = 0; s < sides_.size(); ++s) {
      const TargetPiece& target = sides_[s][number];
      piece->sides[s] = std::make_unique<PieceReader>(target, *checks_[s], part.first == 0);
      straight = straight && piece->sides[s]->straight();
      item = std::max(item, widest_item(target));
    }
    if (options_.target) piece->target = options_.target(number);
    piece->block_numel = options_.block_bytes / item;
    const std::uint64_t blocks =
        straight ? 1 : std::max<std::uint64_t>(1, slab_bytes_ / options_.block_bytes);
    piece->task_numel = piece->block_numel * blocks;
    piece->open_tasks = (part.count - 1) / piece->task_numel + 1;
    piece->next = part.first;
    open_.push_back(std::move(piece));
  }

  Sides sides_;
  const BlockOptions& options_;
  std::uint64_t slab_bytes_;
  const std::function<void(std::size_t)>& piece_done_;
  std::array<std::unique_ptr<StorageChecks>, kMaxSides> own_checks_;
  std::array<StorageChecks*, kMaxSides> checks_{};
  std::mutex mutex_;
  bool stopped_ = false;
  std::vector<std::size_t> order_;  // of the pieces
  std::size_t next_ = 0;            // in order_: the first that was not opened
  std::size_t expected_ = 0;        // in order_: the first without a hint so far
  // Hints are kept in memory, so each piece that is read makes room for another hint.
  bool memory_ahead_ = false;
  std::deque<std::shared_ptr<OpenPiece>> open_;  // those that have tasks left
};

// The buffers of one thread: scratch, one per side, and one per side for cast elements.  The last
// one is absent if pieces have targets, or if it comes from a pool.
class Worker {
 public:
  Worker(Schedule::Sides sides, unsigned thread, std::uint64_t slab_bytes, std::size_t buffers,
         BufferPool* pool)
      : sides_(sides),
        thread_(thread),
        bytes_(slab_bytes),
        pool_(pool),
        // Not zeroed: pages that no slab needs are never touched.
        memory_(std::make_unique_for_overwrite<std::byte[]>(buffers * slab_bytes)) {}

  void run(Schedule& schedule, const std::function<void(const ReadBlock&)>& use) {
    while (const auto task = schedule.next()) {
      if (pool_ != nullptr) given_ = pool_->take();
      read(*task);
      give(*task, use);
      given_.reset();
      schedule.done(*task->piece);
    }
  }
  std::span<std::byte> buffer(std::size_t number) {
    return {memory_.get() + number * bytes_, bytes_};
  }

 private:
  void read(const Task& task) {
    for (std::size_t s = 0; s < sides_.size(); ++s) {
      const TargetPiece& target = sides_[s][task.piece->number];
      const BlockTarget& own = task.piece->target;
      const std::uint64_t written = item_bytes(target.written_dtype());
      const auto end = [&](std::size_t number) {
        if (!own.out.empty()) return own.out.subspan(task.first * written, task.count * written);
        return (given_ ? *given_ : buffer(number)).first(task.count * written);
      };
      const bool casts = target.written_dtype() != target.dtype;
      const auto out =
          casts ? buffer(1 + s).first(task.count * item_bytes(target.dtype)) : end(1 + s);
      const auto crc =
          task.piece->sides[s]->read(task.first, out, buffer(0), own.alone ? &window_ : nullptr);
      read_[s] = out;
      if (s == 0) crc_ = crc;
      if (!casts) continue;
      const auto cast_out = end(1 + sides_.size() + s);
      cast(target.dtype, out, target.written_dtype(), cast_out);
      read_[s] = cast_out;
      if (s == 0) crc_.reset();
    }
  }

  void give(const Task& task, const std::function<void(const ReadBlock&)>& use) {
    const std::uint64_t step = task.piece->block_numel;
    for (std::uint64_t at = 0; at < task.count; at += step) {
      ReadBlock block{};
      block.piece = task.piece->number;
      block.first = task.first + at;
      block.count = std::min(step, task.count - at);
      for (std::size_t s = 0; s < sides_.size(); ++s) {
        const std::uint64_t item = item_bytes(sides_[s][block.piece].written_dtype());
        block.bytes[s] = read_[s].subspan(at * item, block.count * item);
      }
      block.owner = given_;
      if (block.count == task.count) block.crc = crc_;
      block.thread = thread_;
      use(block);
    }
  }

  Schedule::Sides sides_;
  unsigned thread_;
  std::uint64_t bytes_;
  BufferPool* pool_;
  std::unique_ptr<std::byte[]> memory_;
  BufferPool::Buffer given_;  // the target of the current read
  RunWindow window_;
  std::array<std::span<const std::byte>, kMaxSides> read_;
  std::optional<std::uint32_t> crc_;
};

}  // namespace

BlockResult read_blocks(std::span<const std::span<const TargetPiece>> sides,
                        const BlockOptions& options,
                        const std::function<void(const ReadBlock&)>& use,
                        const std::function<void(std::size_t piece)>& piece_done) {
  BlockOptions used = options;
  used.block_bytes = std::max(options.block_bytes, kMinBlockBytes);
  bool casts = false;
  for (const auto& side : sides) {
    for (const TargetPiece& piece : side) casts = casts || piece.written_dtype() != piece.dtype;
  }
  const bool pooled = options.kept_blocks != 0;
  const std::uint64_t each = (casts ? 2 : 1) - (options.target || pooled ? 1 : 0);
  const std::uint64_t buffers = 1 + sides.size() * each;
  const std::uint64_t all_buffers = options.max_buffer_bytes / used.block_bytes;
  const std::uint64_t most_threads = std::max<std::uint64_t>(
      1, (all_buffers - std::min<std::uint64_t>(all_buffers, options.kept_blocks)) /
             (buffers + (pooled ? 1 : 0)));
  const auto threads =
      static_cast<unsigned>(std::clamp<std::uint64_t>(options.threads, 1, most_threads));
  // One buffer for each thread to read into, and those that are kept.
  const std::uint64_t pool_buffers = pooled ? threads + options.kept_blocks : 0;
  const std::uint64_t slab_bytes = std::max(
      used.block_bytes, std::min(options.max_buffer_bytes / (buffers * threads + pool_buffers),
                                 options.max_slab_bytes));
  Schedule schedule(sides, used, slab_bytes, piece_done);
  std::optional<BufferPool> pool;
  if (pooled) pool.emplace(pool_buffers, slab_bytes);
  std::vector<std::unique_ptr<Worker>> workers;
  for (unsigned i = 0; i < threads; ++i)
    workers.push_back(
        std::make_unique<Worker>(sides, i, slab_bytes, buffers, pool ? &*pool : nullptr));
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&](Worker& worker) {
    try {
      worker.run(schedule, use);
    } catch (...) {
      schedule.stop();
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  {
    const auto others = start_helpers(threads - 1, [&](std::size_t i) { work(*workers[i]); });
    work(*workers[0]);
  }
  if (failure) std::rethrow_exception(failure);
  return schedule.finish(workers[0]->buffer(0));
}

}  // namespace fsdp::formats
