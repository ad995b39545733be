// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/outputs/windows.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "formats/bytes/base/threads.h"

namespace fsdp::formats {
namespace {

// This many writes keep the disk busy: it works on one while the next one is submitted.
constexpr std::size_t kWriters = 2;

}  // namespace

OutputWindows::OutputWindows(std::uint64_t max_bytes, CacheUse use)
    : most_windows_(static_cast<std::size_t>(bytes_of(max_bytes) / kWindowBytes)), choice_(use) {}

OutputWindows::~OutputWindows() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  work_.notify_all();
}

std::uint64_t OutputWindows::bytes_of(std::uint64_t max_bytes) {
  const std::uint64_t windows = std::min<std::uint64_t>(max_bytes / kWindowBytes, kMostWindows);
  return windows < kLeastWindows ? 0 : windows * kWindowBytes;
}

void OutputWindows::write(OutputFile& file, PendingWrite what, std::uint32_t crc) {
  const std::uint64_t offset = what.offset;
  const std::uint64_t bytes = what.bytes.size();
  Target& target = target_of(file);
  if (goes_past_cache(file, target)) {
    fill(file, target, offset, what.bytes);
  } else {
    target.turns.write(std::move(what), [&](const PendingWrite& part) {
      // The cache may have turned out to be slow in the meantime.
      if (goes_past_cache(file, target)) {
        fill(file, target, part.offset, part.bytes);
      } else {
        choice_.put(file, part.offset, part.bytes);
      }
    });
  }
  file.add_crc(offset, bytes, crc);
}

void OutputWindows::flush() {
  Lock lock(mutex_);
  while (!filling_.empty()) hand_over(filling_.begin());
  while (!full_.empty()) write_next(lock);
  progress_.wait(lock, [&] { return writing_ == 0; });
  if (failure_) std::rethrow_exception(failure_);
}

OutputWindows::Target& OutputWindows::target_of(OutputFile& file) {
  const std::lock_guard lock(mutex_);
  return targets_[&file];
}

bool OutputWindows::goes_past_cache(OutputFile& file, Target& target) {
  if (most_windows_ == 0 || !choice_.past_cache()) return false;
  const std::lock_guard lock(mutex_);
  // Opened only when needed: with many files descriptors are scarce.
  if (!target.asked) {
    target.asked = true;
    target.direct = file.open_direct();
  }
  return target.direct.get() >= 0;
}

void OutputWindows::fill(OutputFile& file, Target& target, std::uint64_t offset,
                         std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto at = static_cast<std::size_t>(offset % kWindowBytes);
    const auto part = bytes.first(std::min(bytes.size(), kWindowBytes - at));
    Lock lock(mutex_);
    const auto window = window_at(lock, file, target, offset - at);
    ++window->fillers;
    lock.unlock();
    std::memcpy(window->memory.bytes().data() + at, part.data(), part.size());
    lock.lock();
    --window->fillers;
    if (window->runs.add(at, at + part.size()) == ByteRuns::Run{0, kWindowBytes}) {
      hand_over(window);
    } else {
      progress_.notify_all();
    }
    offset += part.size();
    bytes = bytes.subspan(part.size());
  }
}

// Returns the window of those bytes that is being filled, or a new one.
OutputWindows::Place OutputWindows::window_at(Lock& lock, OutputFile& file, Target& target,
                                              std::uint64_t begin) {
  for (;;) {
    if (failure_) std::rethrow_exception(failure_);
    const auto same = std::ranges::find_if(filling_, [&](const Window& window) {
      return window.file == &file && window.begin == begin;
    });
    if (same != filling_.end()) return same;
    // At most half of the windows are filled: the other half are on their way to the disk.
    if (filling_.size() >= most_windows_ / 2) {
      const auto idle = std::ranges::find(filling_, 0, &Window::fillers);
      if (idle != filling_.end()) {
        hand_over(idle);
        continue;
      }
    }
    if (free_.empty() && windows_ < most_windows_) {
      free_.emplace_back().memory = AlignedBuffer(kWindowBytes);
      ++windows_;
    }
    if (!free_.empty()) {
      filling_.splice(filling_.end(), free_, free_.begin());
      Window& window = filling_.back();
      window.file = &file;
      window.target = &target;
      window.begin = begin;
      window.runs = {};
      return std::prev(filling_.end());
    }
    if (writers_.empty() && !full_.empty()) {
      write_next(lock);
    } else {
      progress_.wait(lock);
    }
  }
}

void OutputWindows::hand_over(Place window) {
  full_.splice(full_.end(), filling_, window);
  if (writers_.empty()) {
    writers_ = start_helpers(kWriters, [this](std::size_t) {
      Lock lock(mutex_);
      for (;;) {
        work_.wait(lock, [&] { return stopped_ || !full_.empty(); });
        if (stopped_) return;
        write_next(lock);
      }
    });
  }
  work_.notify_one();
}

// Writes the window that was handed over first; unlocks meanwhile.
void OutputWindows::write_next(Lock& lock) {
  std::list<Window> mine;
  mine.splice(mine.end(), full_, full_.begin());
  ++writing_;
  if (!failure_) {
    lock.unlock();
    std::exception_ptr failure;
    try {
      const Window& window = mine.front();
      for (const auto& [begin, end] : window.runs.runs()) {
        window.file->put_direct(window.target->direct, window.begin + begin,
                                window.memory.bytes().subspan(begin, end - begin));
      }
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (!failure_) failure_ = failure;
  }
  --writing_;
  free_.splice(free_.end(), mine);
  progress_.notify_all();
}

}  // namespace fsdp::formats
