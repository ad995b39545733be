// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/outputs/write_turns.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <latch>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "formats/bytes/base/buffer_pool.h"

namespace fsdp::formats {
namespace {

// Like the threads of a copy: each fills a buffer and brings it, until everything is brought.
TEST(WriteTurns, what_many_threads_bring_is_written_once_and_by_one_at_a_time) {
  constexpr std::uint64_t kWrites = 4000;
  constexpr unsigned kThreads = 6;
  BufferPool pool(kThreads + WriteTurns::kMostWaiting + 1, sizeof(std::uint64_t));
  WriteTurns turns;
  std::atomic<int> at_once{0};
  std::atomic<bool> overlapped{false};
  std::map<std::uint64_t, std::uint64_t> written;  // by one thread at a time
  std::atomic<std::uint64_t> next{0};
  const auto work = [&](unsigned seed) {
    std::mt19937 random(seed);
    for (std::uint64_t i = next++; i < kWrites; i = next++) {
      const auto buffer = pool.take();
      std::memcpy(buffer->data(), &i, sizeof(i));
      turns.write({i, *buffer, buffer}, [&](const PendingWrite& part) {
        if (++at_once != 1) overlapped = true;
        std::uint64_t value = 0;
        std::memcpy(&value, part.bytes.data(), sizeof(value));
        EXPECT_TRUE(written.emplace(part.offset, value).second) << part.offset;
        --at_once;
      });
      // Yields now and then.
      if (random() % 64 == 0) std::this_thread::yield();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < kThreads; ++i) threads.emplace_back(work, i);
  }
  EXPECT_FALSE(overlapped);
  ASSERT_EQ(written.size(), kWrites);
  for (const auto& [offset, value] : written) EXPECT_EQ(offset, value);
}

TEST(WriteTurns, others_go_on_while_one_writes_until_much_is_waiting) {
  WriteTurns turns;
  std::latch began(1);
  std::latch released(1);
  std::atomic<std::size_t> written{0};
  std::jthread writer([&] {
    turns.write({}, [&](const PendingWrite&) {
      if (written++ == 0) {
        began.count_down();
        released.wait();
      }
    });
  });
  began.wait();
  const auto write = [&](const PendingWrite&) { ++written; };
  for (std::size_t i = 0; i < WriteTurns::kMostWaiting; ++i) turns.write({}, write);
  std::atomic<bool> returned{false};
  std::jthread waiter([&] {
    turns.write({}, write);
    returned = true;
  });
  // It cannot return as long as the first write does not end.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(returned);
  EXPECT_EQ(written, 1U);
  released.count_down();
  waiter.join();
  writer.join();
  EXPECT_EQ(written, WriteTurns::kMostWaiting + 2);
}

TEST(WriteTurns, an_error_lets_go_of_what_waits_and_ends_all_that_follows) {
  WriteTurns turns;
  std::latch began(1);
  std::latch released(1);
  std::jthread writer([&] {
    EXPECT_THROW(turns.write({},
                             [&](const PendingWrite&) {
                               began.count_down();
                               released.wait();
                               throw std::runtime_error("no space");
                             }),
                 std::runtime_error);
  });
  began.wait();
  const auto never = [](const PendingWrite&) { ADD_FAILURE() << "written after an error"; };
  const auto owner = std::make_shared<int>(0);
  for (std::size_t i = 0; i < WriteTurns::kMostWaiting; ++i) turns.write({0, {}, owner}, never);
  EXPECT_EQ(owner.use_count(), static_cast<long>(WriteTurns::kMostWaiting) + 1);
  std::jthread waiter([&] {
    EXPECT_THROW(turns.write({0, {}, owner}, never), std::runtime_error);
  });
  released.count_down();
  writer.join();
  waiter.join();
  EXPECT_EQ(owner.use_count(), 1);
  EXPECT_THROW(turns.write({}, never), std::runtime_error);
}

TEST(ProcessorLosses, are_many_where_each_tenth_write_loses_it_and_few_where_each_hundredth_does) {
  ProcessorLosses often;
  ProcessorLosses seldom;
  for (int i = 0; i < 1000; ++i) {
    often.add(i % 10 == 0);
    seldom.add(i % 100 == 0);
    EXPECT_FALSE(seldom.many()) << i;
    if (i > 100) {
      EXPECT_TRUE(often.many()) << i;
    }
  }
}

TEST(BufferPool, a_buffer_is_out_until_its_last_copy_goes) {
  BufferPool pool(2, 16);
  auto first = pool.take();
  const auto second = pool.take();
  EXPECT_EQ(first->size(), 16U);
  EXPECT_NE(first->data(), second->data());
  const std::byte* const memory = first->data();
  std::atomic<bool> taken{false};
  std::jthread waiter([&] {
    const auto third = pool.take();
    taken = true;
    EXPECT_EQ(third->data(), memory);
  });
  auto copy = first;
  first.reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(taken);
  copy.reset();
  waiter.join();
  EXPECT_TRUE(taken);
}

}  // namespace
}  // namespace fsdp::formats
