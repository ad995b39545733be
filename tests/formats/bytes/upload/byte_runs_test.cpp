// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/upload/byte_runs.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Bytes = ByteRuns::Run;

TEST(ByteRuns, runs_that_touch_become_one) {
  ByteRuns runs;
  EXPECT_EQ(runs.add(10, 20), (Bytes{10, 20}));
  EXPECT_EQ(runs.add(30, 40), (Bytes{30, 40}));
  EXPECT_EQ(runs.add(20, 25), (Bytes{10, 25}));
  EXPECT_EQ(runs.add(25, 30), (Bytes{10, 40}));
  EXPECT_EQ(runs.add(0, 10), (Bytes{0, 40}));
  EXPECT_THAT(runs.runs(), ElementsAre(Bytes{0, 40}));
}

TEST(ByteRuns, bytes_that_are_there_are_not_added_again) {
  ByteRuns runs;
  runs.add(10, 20);
  for (const auto& [begin, end] :
       {std::pair{10U, 20U}, {5U, 11U}, {19U, 30U}, {12U, 13U}, {0U, 50U}})
    EXPECT_EQ(runs.add(begin, end).end, 0U) << begin << ' ' << end;
  EXPECT_THAT(runs.runs(), ElementsAre(Bytes{10, 20}));
}

TEST(ByteRuns, a_range_is_taken_out) {
  ByteRuns runs;
  runs.add(0, 10);
  runs.add(20, 30);
  runs.add(40, 60);
  EXPECT_THAT(runs.take(5, 45), ElementsAre(Bytes{5, 10}, Bytes{20, 30}, Bytes{40, 45}));
  EXPECT_THAT(runs.runs(), ElementsAre(Bytes{0, 5}, Bytes{45, 60}));
  EXPECT_THAT(runs.take(50, 55), ElementsAre(Bytes{50, 55}));
  EXPECT_THAT(runs.take(5, 45), IsEmpty());
  EXPECT_THAT(runs.runs(), ElementsAre(Bytes{0, 5}, Bytes{45, 50}, Bytes{55, 60}));
}

TEST(ByteRuns, agrees_with_a_set_of_bytes) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    ByteRuns runs;
    std::vector<bool> bytes(64, false);
    for (int step = 0; step < 40; ++step) {
      const std::uint64_t begin = random() % 63;
      const std::uint64_t end = begin + 1 + random() % (64 - begin);
      bool free = true;
      for (std::uint64_t i = begin; i < end; ++i) free = free && !bytes[i];
      const bool adds = random() % 3 != 0;
      if (adds) {
        EXPECT_EQ(runs.add(begin, end).end != 0, free);
      } else {
        for (const Bytes& run : runs.take(begin, end)) {
          for (std::uint64_t i = run.begin; i < run.end; ++i) EXPECT_TRUE(bytes[i]);
        }
      }
      for (std::uint64_t i = begin; i < end; ++i) bytes[i] = adds ? bytes[i] || free : false;
      std::vector<bool> found(64, false);
      for (const Bytes& run : runs.runs()) {
        for (std::uint64_t i = run.begin; i < run.end; ++i) found[i] = true;
      }
      ASSERT_EQ(found, bytes);
    }
  }
}

}  // namespace
}  // namespace fsdp::formats
