// SPDX-License-Identifier: Apache-2.0
#include "formats/families/trainers/trainer_files.h"

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

TEST(NumberBehind, is_a_count_after_an_underscore) {
  EXPECT_EQ(number_behind(""), 0);
  EXPECT_EQ(number_behind("_0"), 0);
  EXPECT_EQ(number_behind("_12"), 12);
  EXPECT_EQ(number_behind("_9223372036854775807"), INT64_MAX);
  for (const char* text : {"_", "3", "_-0", "_-3", "_+3", "_3x", "_ 3", "_9223372036854775808"})
    EXPECT_EQ(number_behind(text), std::nullopt) << text;
}

TEST(TrainerFile, has_one_of_the_known_names) {
  for (const char* name : {"scheduler.bin", "scaler.pt", "sampler_1.bin", "rng_state_0.pth"})
    EXPECT_TRUE(is_trainer_file(name)) << name;
  for (const char* name : {"scheduler", "scheduler.json", "schedulers.bin", "rng_state_-0.pth"})
    EXPECT_FALSE(is_trainer_file(name)) << name;
}

}  // namespace
}  // namespace fsdp::formats
