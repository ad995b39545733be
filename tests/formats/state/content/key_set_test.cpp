// SPDX-License-Identifier: Apache-2.0
#include "formats/state/content/key_set.h"

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

TEST(KeySet, finds_keys_that_have_only_others_below_them) {
  const KeySet keys({"groups.0.lr", "groups.1", "model", "model.w", "groupsy"});
  EXPECT_TRUE(keys.only_below("groups"));
  EXPECT_TRUE(keys.only_below("groups.0"));
  EXPECT_TRUE(keys.only_below(""));
  EXPECT_FALSE(keys.only_below("model"));
  EXPECT_FALSE(keys.only_below("groups.1"));
  EXPECT_FALSE(keys.only_below("group"));
  EXPECT_FALSE(KeySet({}).only_below(""));
  EXPECT_FALSE(KeySet({""}).only_below(""));
}

}  // namespace
}  // namespace fsdp::formats
