// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/upload/sender_pool.h"

#include <atomic>
#include <chrono>
#include <semaphore>

#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "tests/support/expect_error.h"

namespace fsdp::formats {
namespace {

TEST(SenderPool, does_every_job_and_several_at_once) {
  std::atomic<int> done{0};
  std::atomic<int> at_once{0};
  std::atomic<int> most{0};
  SenderPool pool;
  for (int i = 0; i < 100; ++i) {
    pool.submit([&] {
      const int now = ++at_once;
      int seen = most;
      while (now > seen && !most.compare_exchange_weak(seen, now)) {
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      --at_once;
      ++done;
    });
  }
  pool.wait();
  EXPECT_EQ(done, 100);
  EXPECT_GT(most, 1);
  EXPECT_LE(most, static_cast<int>(SenderPool::kThreads));
}

TEST(SenderPool, the_first_failure_ends_it) {
  std::atomic<int> done{0};
  SenderPool pool;
  pool.submit([] { throw Error(ErrorCode::kNetwork, "first"); });
  test::expect_error(ErrorCode::kNetwork, "first", [&] { pool.wait(); });
  test::expect_error(ErrorCode::kNetwork, "first", [&] { pool.submit([&] { ++done; }); });
  EXPECT_EQ(done, 0);
}

TEST(SenderPool, few_jobs_wait) {
  std::counting_semaphore<> gate(0);
  std::atomic<int> submitted{0};
  SenderPool pool;
  std::jthread submitter([&] {
    for (int i = 0; i < 100; ++i) {
      pool.submit([&] { gate.acquire(); });
      ++submitted;
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LE(submitted, static_cast<int>(2 * SenderPool::kThreads + 1));
  gate.release(100);
  submitter.join();
  pool.wait();
  EXPECT_EQ(submitted, 100);
}

TEST(SenderPool, a_signal_ends_it_at_once) {
  std::atomic<int> done{0};
  SenderPool pool;
  interrupt_signal = 2;
  test::expect_error(ErrorCode::kInterrupted, "interrupted", [&] {
    pool.submit([&] { ++done; });
    pool.wait();
  });
  interrupt_signal = 0;
  EXPECT_EQ(done, 0);
}

TEST(SenderPool, what_was_done_when_a_signal_came_is_done) {
  SenderPool pool;
  pool.submit([] { interrupt_signal = 2; });
  pool.wait();
  interrupt_signal = 0;
}

TEST(SenderPool, stopping_drops_what_was_not_begun) {
  std::counting_semaphore<> gate(0);
  std::atomic<int> done{0};
  SenderPool pool;
  for (std::size_t i = 0; i < SenderPool::kThreads; ++i) {
    pool.submit([&] {
      gate.acquire();
      ++done;
    });
  }
  for (int i = 0; i < 3; ++i) pool.submit_more([&] { ++done; });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_FALSE(pool.stop(std::chrono::milliseconds(1)));
  gate.release(SenderPool::kThreads);
  EXPECT_TRUE(pool.stop(std::chrono::seconds(10)));
  EXPECT_EQ(done, static_cast<int>(SenderPool::kThreads));
}

}  // namespace
}  // namespace fsdp::formats
