// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/store/read_ahead.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/store/ahead_memory.h"

namespace fsdp::formats {
namespace {

using Block = AheadFile::Block;
using State = Block::State;

// Up to this many unwanted bytes are read along instead of splitting a request: a link brings them
// in the time that one more of many requests takes.
constexpr std::uint64_t kGap = 64U << 10U;
// Reads with at most this gap count as sequential: headers of records stand between their data.
constexpr std::uint64_t kNear = 8U << 10U;
// Files up to this size are read whole by the first read.
constexpr std::uint64_t kSmallFile = 1U << 20U;
// A read without a hint is extended to kLeastRead, for the next reads beside it.  Near an end of
// the file, where headers, pickles and directories are, it is extended to kFileEndBytes.
constexpr std::uint64_t kLeastRead = 64U << 10U;
constexpr std::uint64_t kFileEndBytes = 256U << 10U;
constexpr std::uint64_t kFirstWindow = 512U << 10U;
// The most hints that wait; each takes some 200 bytes.
constexpr std::size_t kMostWaiting = 20'000;
// The most bytes of one hint; the rest is fetched when it is read.
constexpr std::uint64_t kMostHinted = std::uint64_t{4} << 30U;
// The longest time until a request to stop is noticed.
constexpr std::chrono::milliseconds kPoll{100};

}  // namespace

struct ReadAhead::Impl {
  using FilePointer = std::shared_ptr<AheadFile>;
  using BlockPointer = std::shared_ptr<Block>;
  using Lock = std::unique_lock<std::mutex>;

  explicit Impl(const std::atomic<std::uint64_t>& most) : budget(most), memory(most, kMostAtOnce) {}

  const std::atomic<std::uint64_t>& budget;
  AheadMemory memory;
  std::mutex mutex;
  std::condition_variable work;   // there is something to do, or room for it
  std::condition_variable ready;  // a block came
  std::deque<std::pair<FilePointer, BlockPointer>> queue;  // those no longer waiting are skipped
  std::uint64_t waiting_bytes = 0;                         // of the queue
  std::uint64_t clock = 0;                                 // the order of the next hint
  std::vector<std::thread> threads;
  std::uint64_t windows = 0;  // files that are read in order without hints
  unsigned idle = 0;
  std::map<std::string, Link, std::less<>> links;  // by the root of URLs
  bool stopped = false;

  // Returns whether the next hint has room.
  bool may_begin() {
    while (!queue.empty() && queue.front().second->state != State::kWaiting) queue.pop_front();
    if (queue.empty()) return false;
    const std::uint64_t bytes = queue.front().second->size();
    const Link& link = *queue.front().first->link;
    return link.running_bytes + bytes <= link.pace.bytes_at_once(memory.request_bytes()) &&
           memory.make_room(bytes);
  }

  // Lets a thread begin the next hint, if there is room for the hint.
  void wake() {
    if (waiting_bytes == 0 || stopped || !may_begin()) return;
    if (idle == 0 && threads.size() < kMostAtOnce) {
      try {
        threads.emplace_back([this] { serve(); });
      } catch (const std::exception&) {
        // Without a new thread, readers make the requests themselves.
      }
    }
    work.notify_one();
  }

  void serve() {
    Lock lock(mutex);
    while (!stopped) {
      if (!may_begin()) {
        ++idle;
        work.wait(lock);
        --idle;
        continue;
      }
      const auto [file, block] = std::move(queue.front());
      queue.pop_front();
      begin(*block);
      Link& link = *file->link;
      link.running_bytes += block->size();
      wake();  // the next thread, as long as there is work
      fetch(file, block, lock);
      link.running_bytes -= block->size();
    }
  }

  void begin(Block& block) {
    waiting_bytes -= block.size();
    memory.begin(block);
    block.state = State::kReading;
  }

  // Makes the request of a block that has begun.
  void fetch(const FilePointer& file, const BlockPointer& block, Lock& lock) {
    lock.unlock();
    std::exception_ptr failure;
    const auto begun = std::chrono::steady_clock::now();
    try {
      if (!block->bytes)
        block->bytes = std::make_shared_for_overwrite<std::byte[]>(block->capacity);
      file->store.read(file->url, file->file, block->begin, {block->bytes.get(), block->size()});
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (!failure) {
      file->link->pace.answered(block->size(), begun, std::chrono::steady_clock::now(),
                                memory.request_bytes());
    }
    try {
      if (!failure && !file->closed) memory.arrived(file, block);
    } catch (const std::bad_alloc&) {
      failure = std::current_exception();
    }
    if (failure || file->closed) {
      // A reader that already waits gets this error; a later read tries again.
      block->failure = failure;
      memory.forget(*file, block);
      block->state = State::kFailed;
    } else {
      block->state = State::kReady;
    }
    ready.notify_all();
  }

  void add(const FilePointer& file, std::uint64_t from, std::uint64_t to, bool kept) {
    if (const auto next = file->blocks.lower_bound(from); next != file->blocks.begin()) {
      const BlockPointer& last = std::prev(next)->second;
      const bool near =
          from - last->end <= kGap && clock - last->order <= budget / 4 && last->kept == kept;
      if (near && last->state == State::kWaiting && from - last->begin < memory.request_bytes()) {
        const std::uint64_t end = memory.request_end(last->begin, to);
        last->used += from - last->end;
        waiting_bytes += end - last->end;
        clock += end - last->end;
        last->end = end;
        from = end;
      }
    }
    while (from < to) {
      auto block = std::make_shared<Block>();
      block->begin = from;
      block->end = memory.request_end(from, to);
      block->order = clock;
      block->kept = kept;
      const auto at = file->blocks.emplace(from, block).first;
      try {
        queue.emplace_back(file, block);
      } catch (const std::bad_alloc&) {
        file->blocks.erase(at);
        throw;
      }
      waiting_bytes += block->size();
      clock += block->size();
      from = block->end;
    }
  }

  // Adds blocks for the parts of a range that no block has yet.
  void expect(const FilePointer& file, std::uint64_t from, std::uint64_t to, bool kept) {
    to = std::min(to, file->file.bytes);
    memory.want_again(*file, from, to, waiting_bytes);
    auto at = file->blocks.upper_bound(from);
    if (at != file->blocks.begin() && std::prev(at)->second->end > from)
      from = std::prev(at)->second->end;
    while (from < to) {
      const std::uint64_t until = at == file->blocks.end() ? to : std::min(to, at->first);
      const std::uint64_t behind = at == file->blocks.end() ? to : at->second->end;
      if (at != file->blocks.end()) ++at;
      if (from < until) add(file, from, until, kept);
      from = std::max(until, behind);
    }
  }

  // Returns the block that has the byte, or null.
  static BlockPointer block_at(const AheadFile& file, std::uint64_t offset) {
    auto at = file.blocks.upper_bound(offset);
    if (at == file.blocks.begin()) return nullptr;
    --at;
    return at->second->end > offset ? at->second : nullptr;
  }

  void set_window(AheadFile& file, std::uint64_t bytes) {
    windows += bytes == 0 ? 0 : 1;
    windows -= file.window == 0 ? 0 : 1;
    file.window = bytes;
  }

  // Doubles the file's window.  All files with a window share the memory.
  void widen(AheadFile& file) {
    const std::uint64_t most = std::max(budget / 2 / windows, AheadMemory::kLeastRequest);
    set_window(file, std::min(file.window * 2, most));
  }

  // Handles a read without a hint: makes blocks for the read and for what probably follows.
  // Returns false if the read is better made alone.
  bool foresee(const FilePointer& file, std::uint64_t offset, std::uint64_t bytes) {
    const std::uint64_t size = file->file.bytes;
    if (size <= kSmallFile) {
      expect(file, 0, size, true);
      return true;
    }
    if (file->next != 0 && offset >= file->next && offset - file->next <= kNear) {
      if (file->window == 0 || file->window_end < offset) {
        set_window(*file, kFirstWindow);
        file->window_end = offset;
      }
      const std::uint64_t wanted = std::max(offset + bytes, file->window_end);
      expect(file, offset, std::min(size, wanted + file->window), false);
      file->window_end = std::min(size, wanted + file->window);
      widen(*file);
      return true;
    }
    set_window(*file, 0);
    if (bytes >= kLeastRead) return false;
    // The end of a file is read backwards: the directory stands before the last bytes.
    if (offset >= size - kFileEndBytes) {
      expect(file, size - kFileEndBytes, size, true);
    } else {
      expect(file, offset, offset + (offset == 0 ? kFileEndBytes : kLeastRead), true);
    }
    return true;
  }

  // Reads the next window ahead of sequential reads when half of the last one is used up.  The last
  // window was half as large as the next.
  void follow(const FilePointer& file, std::uint64_t offset) {
    if (file->window == 0 || file->window_end <= offset || file->window_end >= file->file.bytes ||
        file->window_end - offset > file->window / 4) {
      return;
    }
    const std::uint64_t end = std::min(file->file.bytes, file->window_end + file->window);
    expect(file, file->window_end, end, false);
    file->window_end = end;
    widen(*file);
  }

  // Copies the block's bytes from `offset` on.  Returns their number; 0: the block is gone.
  std::uint64_t take(const FilePointer& file, const BlockPointer& block, std::uint64_t offset,
                     std::span<std::byte> out, Lock& lock) {
    if (block->state == State::kWaiting) {
      memory.make_room(block->size());
      begin(*block);
      wake();
      fetch(file, block, lock);
    }
    while (block->state == State::kReading) {
      wake();
      ready.wait_for(lock, kPoll);
      throw_if_interrupted();
    }
    if (block->state == State::kFailed && block->failure) std::rethrow_exception(block->failure);
    if (block->state != State::kReady) return 0;
    const std::uint64_t bytes = std::min<std::uint64_t>(out.size(), block->end - offset);
    memory.used(file, block, offset, bytes);
    auto from = block->bytes;
    const std::uint64_t at = offset - block->begin;
    lock.unlock();
    std::memcpy(out.data(), from.get() + at, bytes);
    lock.lock();
    from.reset();  // its memory may be used again
    memory.drop_spent();
    wake();
    return bytes;
  }

  // Reads bytes that no block has, up to the next block.  Returns their number.
  std::uint64_t read_alone(const FilePointer& file, std::uint64_t offset, std::span<std::byte> out,
                           Lock& lock) {
    const auto next = file->blocks.lower_bound(offset);
    const std::uint64_t until = next == file->blocks.end() ? file->file.bytes : next->first;
    const auto part = out.first(std::min<std::uint64_t>(out.size(), until - offset));
    memory.passed(part.size());
    wake();
    lock.unlock();
    file->store.read(file->url, file->file, offset, part);
    lock.lock();
    return part.size();
  }
};

ReadAhead& ReadAhead::shared() {
  static ReadAhead all;
  return all;
}

ReadAhead::ReadAhead() : budget_(kDefaultBudget), impl_(std::make_unique<Impl>(budget_)) {}

ReadAhead::~ReadAhead() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopped = true;
  }
  // The process ends: running requests end as after a signal, since no reader waits for them.
  interrupt_signal = SIGTERM;
  impl_->work.notify_all();
  for (std::thread& thread : impl_->threads) thread.join();
}

void ReadAhead::set_budget(std::uint64_t bytes) {
  budget_ = std::max(bytes, AheadMemory::kLeastRequest);
}

void ReadAhead::open(AheadFile& file) {
  const std::lock_guard lock(impl_->mutex);
  const std::string root = file.url.substr(0, file.url.find('/', file.url.find("://") + 3));
  file.link = &impl_->links[root];
}

bool ReadAhead::expect(const std::shared_ptr<AheadFile>& file, std::uint64_t offset,
                       std::uint64_t count, bool again) noexcept {
  try {
    const std::lock_guard lock(impl_->mutex);
    if (offset < file->file.bytes) {
      const std::uint64_t most = std::min(kMostHinted, file->file.bytes - offset);
      impl_->expect(file, offset, offset + std::min(count, most), again);
    }
    // More hints may join these requests until the next read.
    if (impl_->waiting_bytes > budget_ / 2) impl_->wake();
    return impl_->waiting_bytes < budget_ && impl_->queue.size() < kMostWaiting;
  } catch (const std::bad_alloc&) {
    // The read makes the request itself.
    return false;
  }
}

void ReadAhead::read(const std::shared_ptr<AheadFile>& file, std::uint64_t offset,
                     std::span<std::byte> out) {
  Impl::Lock lock(impl_->mutex);
  while (!out.empty()) {
    throw_if_interrupted();
    impl_->wake();
    impl_->follow(file, offset);
    auto block = Impl::block_at(*file, offset);
    if (!block && impl_->foresee(file, offset, out.size())) block = Impl::block_at(*file, offset);
    std::uint64_t done = 0;
    if (block) {
      try {
        done = impl_->take(file, block, offset, out, lock);
      } catch (const std::bad_alloc&) {
        done = impl_->read_alone(file, offset, out, lock);
      }
      if (done == 0) continue;
    } else {
      done = impl_->read_alone(file, offset, out, lock);
    }
    offset += done;
    out = out.subspan(done);
    file->next = offset;
  }
}

void ReadAhead::close(AheadFile& file) noexcept {
  const std::lock_guard lock(impl_->mutex);
  file.closed = true;
  impl_->set_window(file, 0);
  while (!file.blocks.empty()) {
    const auto block = file.blocks.begin()->second;
    if (block->state == State::kReady) {
      impl_->memory.forget(file, block);
    } else {
      if (block->state == State::kWaiting) {
        impl_->waiting_bytes -= block->size();
        block->state = State::kGone;
      }
      file.blocks.erase(file.blocks.begin());  // the thread that reads it frees it
    }
  }
  impl_->memory.drop_buffers();
  impl_->wake();
}

}  // namespace fsdp::formats
