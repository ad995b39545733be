// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hf/open_patterns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdp::formats::hf {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class OpenPatternsTest : public testing::Test {
 protected:
  void SetUp() override {
    patterns_.add("layers.{}.fc.weight", 1);
    patterns_.add("layers.{}.fc.bias", 1);
    patterns_.add("layers.{}.fc.scale", 0);
    patterns_.add("stages.3.{}.conv", 2);
  }
  OpenPatterns patterns_;
};

TEST_F(OpenPatternsTest, numbers_of_a_pattern_are_kept) {
  EXPECT_TRUE(patterns_.match("layers.7.fc.weight"));
  EXPECT_TRUE(patterns_.match("stages.3.12.conv"));
  EXPECT_FALSE(patterns_.match("stages.2.12.conv"));
  EXPECT_FALSE(patterns_.match("layers.7.fc"));
  EXPECT_FALSE(patterns_.match("layers.x.fc.weight"));
}

TEST_F(OpenPatternsTest, those_of_a_group_come_together) {
  EXPECT_THAT(patterns_.missing({"layers.0.fc.weight", "layers.0.fc.bias", "layers.4.fc.bias"}),
              ElementsAre("layers.4.fc.weight"));
  EXPECT_THAT(patterns_.missing({"layers.0.fc.scale", "stages.3.0.conv", "other.1.bias"}),
              IsEmpty());
}

}  // namespace
}  // namespace fsdp::formats::hf
