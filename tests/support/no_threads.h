// SPDX-License-Identifier: Apache-2.0
// Forbids new threads for a time.
#pragma once

#include <pthread.h>

#include <cstddef>

#include <gtest/gtest.h>

namespace fsdp::test {

// While it lives no thread can be started in this process: each would get a stack larger than any
// address space.
class NoThreads {
 public:
  NoThreads() {
    pthread_attr_t attributes;
    pthread_getattr_default_np(&attributes);
    pthread_attr_getstacksize(&attributes, &before_);
    pthread_attr_destroy(&attributes);
    set(std::size_t{1} << 47U);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;
  ~NoThreads() { set(before_); }

 private:
  static void set(std::size_t bytes) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, bytes);
    EXPECT_EQ(pthread_setattr_default_np(&attributes), 0);
    pthread_attr_destroy(&attributes);
  }
  std::size_t before_ = 0;
};

}  // namespace fsdp::test
