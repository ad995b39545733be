// SPDX-License-Identifier: Apache-2.0
#include "tests/support/sim_device/shadow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdp::test::sim {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

struct History {
  // Touches bytes on a stream that knows nothing of others, and returns the streams in conflict.
  std::vector<int> touch(std::size_t begin, std::size_t end, bool write, int stream) {
    Clock known;
    return touch(begin, end, write, stream, known);
  }
  std::vector<int> touch(std::size_t begin, std::size_t end, bool write, int stream, Clock& known) {
    std::vector<int> result;
    shadow.touch(begin, end, write, {stream, ++time, "test", 0}, known,
                 [&](Conflict, const Access& earlier) { result.push_back(earlier.stream); });
    return result;
  }
  Shadow shadow;
  std::uint32_t time = 0;
};

TEST(SimShadow, reads_of_two_streams_do_not_disturb_each_other) {
  History history;
  history.touch(0, 64, true, 1);
  EXPECT_THAT(history.touch(0, 64, false, 1), IsEmpty());
  EXPECT_THAT(history.touch(0, 64, false, 2), ElementsAre(1));
  EXPECT_THAT(history.touch(64, 128, false, 2), IsEmpty());
  EXPECT_THAT(history.touch(64, 128, false, 3), IsEmpty());
}

TEST(SimShadow, a_write_is_in_conflict_with_each_earlier_read) {
  History history;
  history.touch(0, 64, false, 1);
  history.touch(0, 64, false, 2);
  EXPECT_THAT(history.touch(0, 64, true, 3), ElementsAre(1, 2));
  // Later accesses are compared with that write alone.
  EXPECT_THAT(history.touch(0, 64, true, 4), ElementsAre(3));
}

TEST(SimShadow, bytes_that_are_not_shared_are_not_compared) {
  History history;
  history.touch(16, 32, true, 1);
  EXPECT_THAT(history.touch(0, 16, true, 2), IsEmpty());
  EXPECT_THAT(history.touch(32, 48, true, 2), IsEmpty());
  EXPECT_THAT(history.touch(24, 25, false, 3), ElementsAre(1));
  EXPECT_THAT(history.touch(0, 48, false, 4), ElementsAre(2, 1, 1, 1, 2));
}

TEST(SimShadow, a_stream_that_knows_of_the_access_is_after_it) {
  History history;
  history.touch(0, 64, true, 1);
  Clock known;
  known.tick(1);
  EXPECT_THAT(history.touch(0, 64, true, 2, known), IsEmpty());
}

TEST(SimShadow, settled_accesses_are_forgotten) {
  History history;
  history.touch(0, 64, true, 1);
  history.touch(0, 64, false, 1);
  history.shadow.settle(1, 2);
  EXPECT_THAT(history.touch(0, 64, true, 2), IsEmpty());
}

}  // namespace
}  // namespace fsdp::test::sim
