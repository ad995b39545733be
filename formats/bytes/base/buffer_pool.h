// SPDX-License-Identifier: Apache-2.0
// Buffers that several threads fill and others empty.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace fsdp::formats {

// Thread-safe.
class BufferPool {
 public:
  // A buffer, which returns to the pool when its last copy is destroyed.
  using Buffer = std::shared_ptr<const std::span<std::byte>>;

  // Reserves memory for the buffers; their pages take none until they are written.
  // Throws: std::bad_alloc.
  BufferPool(std::size_t count, std::size_t bytes);
  // Requires: every buffer was returned.
  ~BufferPool() = default;

  // Returns a free buffer; waits until there is one.
  // Throws: std::bad_alloc.
  Buffer take();

 private:
  void give_back(const std::span<std::byte>* buffer);

  std::unique_ptr<std::byte[]> memory_;
  std::vector<std::span<std::byte>> buffers_;
  std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<const std::span<std::byte>*> free_;
};

}  // namespace fsdp::formats
