// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/threads.h"

#include <pthread.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

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

TEST(Threads, each_number_gets_its_turn_once) {
  for (const std::size_t threads : {0U, 1U, 3U, 100U}) {
    std::vector<std::atomic<int>> calls(50);
    run_each(calls.size(), threads, [&](std::size_t i) { ++calls[i]; });
    for (const auto& count : calls) EXPECT_EQ(count, 1);
  }
  run_each(0, 4, [](std::size_t) { FAIL(); });
}

TEST(Threads, the_error_of_the_lowest_number_is_thrown) {
  std::atomic<int> began = 0;
  std::atomic<bool> second_failed = false;
  try {
    run_each(1000, 2, [&](std::size_t i) {
      ++began;
      // The first one fails after the second.
      while (i == 0 && !second_failed) std::this_thread::yield();
      if (i == 1) second_failed = true;
      throw std::runtime_error(std::to_string(i));
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "0");
  }
  EXPECT_EQ(began, 2);
}

}  // namespace
}  // namespace fsdp::formats
