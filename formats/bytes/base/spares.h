// SPDX-License-Identifier: Apache-2.0
// Work memory that is kept from one use to the next.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace fsdp::formats {

// Objects that are used by one thread at a time.  There are as many as were needed at once.
// Thread-safe.
template <typename T>
class Spares {
 public:
  // Puts the object back.  Lifetime: the spares outlive the loan.
  struct GiveBack {
    Spares* spares;
    void operator()(T* used) const { spares->give_back(std::unique_ptr<T>(used)); }
  };
  using Loan = std::unique_ptr<T, GiveBack>;

  // Returns an object as its last user left it, or a new one made of `arguments`.
  template <typename... Arguments>
  Loan take(Arguments&&... arguments) {
    std::unique_lock lock(mutex_);
    if (free_.empty()) {
      free_.reserve(made_ + 1);  // giving back needs no memory then
      ++made_;
      lock.unlock();
      return Loan(new T(std::forward<Arguments>(arguments)...), GiveBack{this});
    }
    Loan loan(free_.back().release(), GiveBack{this});
    free_.pop_back();
    return loan;
  }

 private:
  void give_back(std::unique_ptr<T> used) noexcept {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(used));
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> free_;
  std::size_t made_ = 0;
};

}  // namespace fsdp::formats
