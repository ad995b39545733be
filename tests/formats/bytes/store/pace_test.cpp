// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/store/pace.h"

#include <algorithm>
#include <deque>
#include <limits>

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

constexpr std::uint64_t kMiB = 1U << 20U;
constexpr std::uint64_t kMost = 48;

// A link of some width to a server that answers after a while.  As many requests are under way as
// the pace says, up to kMost.
class SimLink {
 public:
  SimLink(double seconds, double rate) : seconds_of_latency(seconds), bytes_per_second(rate) {}

  double seconds_of_latency;
  double bytes_per_second;
  Pace pace;

  // Makes some requests of a MiB.  Returns the bytes that came a second.
  double run(int requests) {
    const double begin = now_;
    for (int i = 0; i < requests; ++i) {
      while (begun_.size() < kMost && (begun_.size() + 1) * kMiB <= pace.bytes_at_once(kMiB))
        begun_.push_back(now_);
      // Answers come one after the other, each at the whole width.
      now_ = std::max(now_, begun_.front() + seconds_of_latency) + kMiB / bytes_per_second;
      pace.answered(kMiB, at(begun_.front()), at(now_), kMiB);
      begun_.pop_front();
    }
    return requests * static_cast<double>(kMiB) / (now_ - begin);
  }
  std::size_t under_way() const { return begun_.size(); }
  // Nobody reads for a while.
  void pause(double seconds) {
    begun_.clear();
    now_ += seconds;
  }
  double best() const {
    return std::min(bytes_per_second,
                    kMost * kMiB / (seconds_of_latency + kMiB / bytes_per_second));
  }

 private:
  static Pace::Time at(double seconds) {
    return Pace::Time(
        std::chrono::duration_cast<Pace::Time::duration>(std::chrono::duration<double>(seconds)));
  }
  double now_ = 1;
  std::deque<double> begun_;
};

TEST(PaceTest, nothing_is_held_back_before_anything_is_known) {
  const Pace pace;
  EXPECT_EQ(pace.bytes_at_once(kMiB), std::numeric_limits<std::uint64_t>::max());
}

TEST(PaceTest, a_link_is_filled_whatever_its_latency) {
  for (const double latency : {0.0, 0.0002, 0.001, 0.005, 0.02, 0.05, 0.2}) {
    for (const double rate : {5e7, 1e9, 1e10}) {
      SimLink link(latency, rate);
      EXPECT_GE(link.run(2000), 0.9 * link.best()) << latency << " s, " << rate;
    }
  }
}

// Who opens a file reads its beginning alone, so the first answer tells how near the server is.
TEST(PaceTest, few_requests_are_enough_nearby) {
  SimLink link(0.0002, 2e9);
  link.pace.answered(kMiB, Pace::Time{}, Pace::Time{std::chrono::microseconds(700)}, kMiB);
  std::size_t at_once = 0;
  for (int i = 0; i < 100; ++i) {
    link.run(20);
    at_once += link.under_way();
  }
  EXPECT_LE(at_once / 100, Pace::kFewest + 2);
}

TEST(PaceTest, a_server_that_became_slow_is_asked_for_more_at_once) {
  SimLink link(0.0002, 2e9);
  link.run(500);
  link.seconds_of_latency = 0.05;
  link.run(300);
  EXPECT_GE(link.run(1000), 0.9 * link.best());
}

TEST(PaceTest, a_pause_says_nothing_of_the_link) {
  SimLink link(0.02, 2e9);
  for (int i = 0; i < 10; ++i) {
    link.pause(5);
    EXPECT_GE(link.run(400), 0.85 * link.best()) << "after pause " << i;
  }
}

// Headers of a few bytes take the same time as a MiB does, and come at no rate.
TEST(PaceTest, small_requests_say_nothing_of_large_ones) {
  SimLink link(0.05, 2e9);
  for (int i = 0; i < 1000; ++i) {
    const Pace::Time begin{std::chrono::milliseconds(10 * i)};
    link.pace.answered(200, begin, begin + std::chrono::milliseconds(50), kMiB);
  }
  link.pause(11);
  EXPECT_GE(link.run(500), 0.9 * link.best());
}

}  // namespace
}  // namespace fsdp::formats
