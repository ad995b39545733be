// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/http/patience.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/interrupt.h"
#include "tests/support/expect_error.h"

namespace fsdp::formats {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;
using test::expect_error;

constexpr NetworkLimits kManyTries{1000, seconds(60), seconds(20)};

milliseconds since(Clock::time_point begin) {
  return std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
}

TEST(Patience, each_pause_is_twice_as_long_as_the_one_before_up_to_ten_seconds) {
  milliseconds whole{100};
  for (unsigned tried = 1; tried < 100; ++tried) {
    EXPECT_EQ(backoff(tried, 1), whole) << tried;
    EXPECT_EQ(backoff(tried, 0), whole / 2) << tried;
    EXPECT_EQ(backoff(tried, 0.5), whole * 3 / 4) << tried;
    whole = std::min(whole * 2, milliseconds(10'000));
  }
  EXPECT_EQ(backoff(0xFFFFFFFFU, 1), milliseconds(10'000));
}

TEST(Patience, waits_between_half_of_the_pause_and_all_of_it) {
  Patience patience("u", kManyTries);
  const auto begin = Clock::now();
  patience.wait("why");
  EXPECT_GE(since(begin), milliseconds(50));
  patience.wait("why");
  EXPECT_GE(since(begin), milliseconds(150));
}

TEST(Patience, many_clients_do_not_wait_equally_long) {
  // Pauses of 50 to 100 ms: equal ones would be equal to a fraction of a millisecond.
  std::array<milliseconds, 8> pauses{};
  std::vector<std::thread> threads;
  for (milliseconds& pause : pauses) {
    threads.emplace_back([&pause] {
      Patience patience("u", kManyTries);
      const auto begin = Clock::now();
      patience.wait("why");
      pause = since(begin);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto [least, most] = std::minmax_element(pauses.begin(), pauses.end());
  EXPECT_GE(*least, milliseconds(50));
  EXPECT_GE(*most - *least, milliseconds(2));
}

TEST(Patience, the_last_try_is_told) {
  Patience patience("s3://b/k", {2, seconds(60), seconds(20)});
  patience.wait("broken");
  expect_error(ErrorCode::kNetwork, "s3://b/k: broken; tried 2 times in 0 s",
               [&] { patience.wait("broken"); });
}

TEST(Patience, a_failure_that_is_not_worth_another_try_is_told_at_once) {
  Patience patience("u", kManyTries);
  try {
    patience.wait("no such host", 1);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "u: no such host");
  }
}

TEST(Patience, no_pause_goes_beyond_the_deadline) {
  Patience patience("u", {1000, seconds(1), seconds(20)});
  const auto begin = Clock::now();
  expect_error(ErrorCode::kNetwork, "u: busy", [&] { patience.wait("busy", 1000, seconds(30)); });
  EXPECT_LT(since(begin), milliseconds(500));
  expect_error(ErrorCode::kNetwork, "u: busy; tried", [&] {
    for (;;) patience.wait("busy");
  });
  EXPECT_LT(since(begin), milliseconds(2500));
}

TEST(Patience, waits_as_long_as_the_server_asks) {
  Patience patience("u", kManyTries);
  const auto begin = Clock::now();
  patience.wait("busy", 1000, seconds(1));
  EXPECT_GE(since(begin), milliseconds(1000));
}

TEST(Patience, data_that_came_begins_it_anew) {
  Patience patience("u", {2, seconds(1), seconds(20)});
  for (int i = 0; i < 3; ++i) {
    patience.wait("broken");
    patience.progressed();
    EXPECT_GT(patience.left(), milliseconds(900));
  }
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_LE(patience.left(), milliseconds(980));
}

TEST(Patience, something_is_left_after_the_deadline_too) {
  Patience patience("u", {2, seconds(0), seconds(20)});
  EXPECT_EQ(patience.left(), milliseconds(1));
}

TEST(Patience, an_interrupt_ends_a_pause) {
  Patience patience("u", kManyTries);
  const auto begin = Clock::now();
  std::thread other([] {
    std::this_thread::sleep_for(milliseconds(100));
    interrupt_signal = SIGINT;
  });
  expect_error(ErrorCode::kInterrupted, "", [&] { patience.wait("busy", 1000, seconds(30)); });
  other.join();
  interrupt_signal = 0;
  EXPECT_LT(since(begin), seconds(5));
}

// The environment is read once a process: each of these runs in one of its own.
class PatienceEnvironment : public testing::Test {
 protected:
  PatienceEnvironment() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  // Ends the process: its words are what the limits are, or why they are refused.
  [[noreturn]] static void tell(const char* name, const char* value) {
    ::setenv(name, value, 1);
    try {
      const NetworkLimits& limits = network_limits();
      std::fprintf(stderr, "%u tries, %d s, %d s\n", limits.tries,
                   static_cast<int>(limits.deadline.count()),
                   static_cast<int>(limits.stall.count()));
    } catch (const Error& e) {
      std::fprintf(stderr, "%s: %s\n", std::string(code_name(e.code())).c_str(), e.what());
    }
    std::exit(7);
  }
};

TEST_F(PatienceEnvironment, sets_the_limits) {
  const auto ended = testing::ExitedWithCode(7);
  EXPECT_EXIT(tell("FSDP_CKPT_NETWORK_TRIES", ""), ended, "10 tries, 120 s, 20 s");
  EXPECT_EXIT(tell("FSDP_CKPT_NETWORK_TRIES", "1"), ended, "1 tries, 120 s, 20 s");
  EXPECT_EXIT(tell("FSDP_CKPT_NETWORK_SECONDS", "1000000"), ended, "10 tries, 1000000 s, 20 s");
  EXPECT_EXIT(tell("FSDP_CKPT_STALL_SECONDS", "3"), ended, "10 tries, 120 s, 3 s");
}

TEST_F(PatienceEnvironment, refuses_what_is_no_positive_number) {
  for (const char* name :
       {"FSDP_CKPT_NETWORK_TRIES", "FSDP_CKPT_NETWORK_SECONDS", "FSDP_CKPT_STALL_SECONDS"}) {
    EXPECT_EXIT(tell(name, "0"), testing::ExitedWithCode(7),
                std::string(name) + " is '0', which is not a number from 1 to 1000000");
  }
  for (const char* value : {"-1", "1.5", "10s", " 1", "1000001", "99999999999999999999", "ten"}) {
    EXPECT_EXIT(tell("FSDP_CKPT_NETWORK_TRIES", value), testing::ExitedWithCode(7),
                "which is not a number from 1 to 1000000");
  }
}

}  // namespace
}  // namespace fsdp::formats
