// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/hub_place.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fsdp::formats {
namespace {

TEST(HubPlace, names_files_lists_and_revisions) {
  const HubPlace file = hub_place("hf://org/name@refs/pr/1/a b/c.json");
  EXPECT_EQ(file.revision, "refs/pr/1");
  EXPECT_EQ(file.path, "a b/c.json");
  EXPECT_EQ(file.file_target(), "org/name/resolve/refs%2Fpr%2F1/a%20b/c.json");
  EXPECT_EQ(file.tree_target(), "api/models/org/name/tree/refs%2Fpr%2F1/a%20b/c.json");
  EXPECT_EQ(file.tree_target("0123"), "api/models/org/name/tree/0123/a%20b/c.json");
  EXPECT_EQ(file.revision_target(), "api/models/org/name/revision/refs%2Fpr%2F1");
  EXPECT_EQ(hub_place("hf://org/name").tree_target(), "api/models/org/name/tree/main");
  EXPECT_EQ(hub_place("hf://org/name@a%2Fb/c").revision, "a/b");
}

TEST(HubPlace, kinds_stand_before_the_name) {
  EXPECT_EQ(hub_place("hf://models/org/name/a").file_target(), "org/name/resolve/main/a");
  for (const char* const kind : {"datasets", "spaces", "kernels"}) {
    const HubPlace place = hub_place(std::string("hf://") + kind + "/org/name/a");
    EXPECT_EQ(place.file_target(), std::string(kind) + "/org/name/resolve/main/a");
    EXPECT_EQ(place.tree_target(), std::string("api/") + kind + "/org/name/tree/main/a");
    EXPECT_FALSE(place.is_bucket());
  }
  // One kind alone.
  EXPECT_EQ(hub_place("hf://datasets/spaces/name").repo, "spaces/name");
}

TEST(HubPlace, buckets_have_no_revisions) {
  const HubPlace place = hub_place("hf://buckets/org/name/a b/c");
  EXPECT_TRUE(place.is_bucket());
  EXPECT_EQ(place.file_target(), "buckets/org/name/resolve/a%20b/c");
  EXPECT_EQ(place.tree_target(), "api/buckets/org/name/tree/a%20b%2Fc");
  EXPECT_EQ(hub_place("hf://buckets/org/name").tree_target(), "api/buckets/org/name/tree");
  EXPECT_EQ(hub_place("hf://buckets/org/name/a@b").path, "a@b");
  test::expect_error(ErrorCode::kUsage, "buckets have none",
                     [] { hub_place("hf://buckets/org/name@v1/a"); });
  test::expect_error(ErrorCode::kUsage, "does not name a bucket",
                     [] { hub_place("hf://buckets/org"); });
}

}  // namespace
}  // namespace fsdp::formats
