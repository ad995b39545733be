// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/buffer_pool.h"

namespace fsdp::formats {

BufferPool::BufferPool(std::size_t count, std::size_t bytes)
    : memory_(std::make_unique_for_overwrite<std::byte[]>(count * bytes)) {
  buffers_.reserve(count);
  free_.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    buffers_.emplace_back(memory_.get() + i * bytes, bytes);
    free_.push_back(&buffers_.back());
  }
}

BufferPool::Buffer BufferPool::take() {
  std::unique_lock lock(mutex_);
  returned_.wait(lock, [&] { return !free_.empty(); });
  // The buffer returned last is the most likely to be in a cache.
  const auto* const buffer = free_.back();
  free_.pop_back();
  lock.unlock();
  // If the constructor throws, it has called the deleter.
  return Buffer(buffer, [this](const std::span<std::byte>* used) { give_back(used); });
}

void BufferPool::give_back(const std::span<std::byte>* buffer) {
  const std::lock_guard lock(mutex_);
  free_.push_back(buffer);
  returned_.notify_one();
}

}  // namespace fsdp::formats
