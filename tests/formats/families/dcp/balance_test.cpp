// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "formats/families/dcp/folder_plan.h"

namespace fsdp::formats::dcp {
namespace {

TEST(Balance, what_all_have_goes_to_the_rank_with_the_least_lowest_first) {
  Balance balance(3);
  EXPECT_EQ(balance.place(10), 0);
  EXPECT_EQ(balance.place(4), 1);
  EXPECT_EQ(balance.place(5), 2);
  EXPECT_EQ(balance.place(1), 1);   // 10, 4, 5
  EXPECT_EQ(balance.place(0), 1);   // 10, 5, 5: the lower one; a value counts 1
  EXPECT_EQ(balance.place(9), 2);   // 10, 6, 5
  EXPECT_EQ(balance.place(20), 1);  // 10, 6, 14
  EXPECT_EQ(balance.place(1), 0);   // 10, 26, 14
}

TEST(Balance, what_is_cut_weighs_on_rank_0_with_all_its_bytes) {
  Balance balance(2);
  balance.add_cut(100);
  EXPECT_EQ(balance.place(60), 1);
  EXPECT_EQ(balance.place(60), 1);
  EXPECT_EQ(balance.place(1), 0);
}

TEST(Balance, one_rank_gets_everything) {
  Balance balance(1);
  EXPECT_EQ(balance.place(5), 0);
  EXPECT_EQ(balance.place(0), 0);
}

}  // namespace
}  // namespace fsdp::formats::dcp
