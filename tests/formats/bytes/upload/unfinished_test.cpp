// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/upload/unfinished.h"

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

struct Noted : Unfinished {
  Noted() { note_unfinished(*this); }
  ~Noted() override { forget_unfinished(*this); }
  void abandon() noexcept override { ++count; }
  int count = 0;
};

TEST(Unfinished, counts_what_was_committed) {
  const std::uint64_t before = outputs_committed();
  note_committed();
  EXPECT_EQ(outputs_committed(), before + 1);
}

TEST(UnfinishedDeathTest, every_output_that_is_being_written_is_abandoned) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        Noted first;
        { const Noted gone; }
        Noted second;
        abandon_outputs();
        std::exit(first.count + second.count);
      },
      testing::ExitedWithCode(2), "");
}

}  // namespace
}  // namespace fsdp::formats
