// SPDX-License-Identifier: Apache-2.0
#include "formats/base/threads.h"

#include <pthread.h>

#include <atomic>

#include <gtest/gtest.h>

#include "tests/support/no_threads.h"

namespace fsdp::formats {
namespace {

TEST(Threads, helpers_have_the_numbers_from_one_on) {
  std::atomic<std::size_t> sum = 0;
  {
    const auto helpers = start_helpers(4, [&](std::size_t i) { sum += i; });
  }
  EXPECT_EQ(sum, 10U);
  EXPECT_TRUE(start_helpers(0, [](std::size_t) {}).empty());
}

TEST(Threads, where_none_are_to_be_had_there_are_fewer) {
  const test::NoThreads none;
  EXPECT_TRUE(start_helpers(4, [](std::size_t) {}).empty());
}

}  // namespace
}  // namespace fsdp::formats
