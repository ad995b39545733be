// SPDX-License-Identifier: Apache-2.0
// The stack of the pickle machine: values, and marks between them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/containers/pickle/value.h"

namespace fsdp::formats {

// Only values above the last mark are accessible.
class PickleStack {
 public:
  explicit PickleStack(std::uint64_t max_values) : max_values_(max_values) {}
  PickleStack(const PickleStack&) = delete;
  PickleStack& operator=(const PickleStack&) = delete;
  ~PickleStack() {
    drop_to(0);
    std::allocator<Value>().deallocate(values_, capacity_);
  }

  std::size_t size() const { return size_; }
  std::size_t reachable() const { return size_ - fence_; }

  // Throws: kLimitNodes if it would grow far beyond max_values.
  void push(Value value) {
    if (size_ == capacity_) grow();
    std::construct_at(values_ + size_, std::move(value));
    ++size_;
  }
  // Requires: size() > 0.
  Value pop() {
    --size_;
    Value value(
        std::move(values_[size_]));  // the moved-from value is None, which needs no destructor
    return value;
  }
  // Returns the value with `above` others above it.  Requires: above < size().
  Value& top(std::size_t above = 0) { return values_[size_ - 1 - above]; }
  // The last `count` values.  Requires: count <= size().
  std::span<Value> last(std::size_t count) { return {values_ + (size_ - count), count}; }
  // Removes all values but the lowest `size`.  Requires: size <= size().
  void drop_to(std::size_t size) {
    while (size_ > size) std::destroy_at(values_ + --size_);
  }

  // Records a mark: the present height of the stack.
  void mark() {
    marks_.push_back(size_);
    fence_ = size_;
  }
  std::size_t mark_count() const { return marks_.size(); }
  // The values above the last mark.  Requires: mark_count() > 0.
  std::span<Value> since_mark() { return last(size_ - fence_); }
  // The value just below the last mark, nullptr if there is another mark or nothing.  Requires:
  // mark_count() > 0.
  Value* below_mark() {
    const std::size_t reach = marks_.size() < 2 ? 0 : marks_[marks_.size() - 2];
    return fence_ > reach ? values_ + (fence_ - 1) : nullptr;
  }
  // Removes the last mark and all values above it.  Requires: mark_count() > 0.
  void drop_mark() {
    drop_to(fence_);
    marks_.pop_back();
    fence_ = marks_.empty() ? 0 : marks_.back();
  }

 private:
  void grow() {
    if (capacity_ > max_values_) {
      throw Error(ErrorCode::kLimitNodes,
                  cat("more than ", max_values_, " values are on the stack"));
    }
    const std::size_t capacity = std::max<std::size_t>(64, capacity_ * 2);
    Value* const values = std::allocator<Value>().allocate(capacity);
    std::uninitialized_move_n(values_, size_, values);
    std::allocator<Value>().deallocate(values_, capacity_);
    values_ = values;
    capacity_ = capacity;
  }

  const std::uint64_t max_values_;
  Value* values_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
  std::vector<std::size_t> marks_;
  std::size_t fence_ = 0;  // the last mark, 0 if there is none
};

}  // namespace fsdp::formats
