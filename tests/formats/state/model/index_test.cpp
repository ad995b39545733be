// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/index.h"

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

TEST(ChunkList, boxes_and_locations_come_back_as_they_were_added) {
  ChunkList chunks(2);
  chunks.add(std::vector<std::int64_t>{0, 1}, std::vector<std::int64_t>{2, 3}, {4, 0, 5, 6});
  chunks.add(std::vector<std::int64_t>{7, 8}, std::vector<std::int64_t>{9, 10}, {1, 0, 2, 3});
  ASSERT_EQ(chunks.size(), 2U);
  EXPECT_EQ(box_text(chunks.box(1)), "[7:16, 8:18]");
  EXPECT_EQ(chunks.location(0).file, 4U);
  EXPECT_EQ(chunks.location(1).length, 3U);
}

TEST(ChunkList, rank_0_chunks_have_locations_alone) {
  ChunkList chunks(0);
  chunks.add({}, {}, {0, 0, 9, 1});
  ASSERT_EQ(chunks.size(), 1U);
  EXPECT_EQ(chunks.box(0).rank(), 0U);
  EXPECT_EQ(chunks.location(0).offset, 9U);
}

TEST(Index, keeping_entries_keeps_their_order_across_kinds) {
  Index index;
  for (const char* key : {"a", "b", "c"}) {
    index.add(TensorEntry{key, {key}, DType::kBool, {2}, ChunkList(1)});
    index.add(ValueEntry{std::string("v") + key, {key}, {}});
  }
  keep_entries(index, [](const std::string& key) { return key != "b" && key != "va"; });
  ASSERT_EQ(index.order.size(), 4U);
  EXPECT_EQ(index.tensors[index.order[0].position].key, "a");
  EXPECT_EQ(index.values[index.order[1].position].key, "vb");
  EXPECT_EQ(index.tensors[index.order[2].position].key, "c");
  EXPECT_EQ(index.values[index.order[3].position].key, "vc");
}

TEST(Index, a_path_reads_as_its_steps_joined_by_dots) {
  EXPECT_EQ(joined({"optim", "param_groups", std::int64_t{0}, "lr"}), "optim.param_groups.0.lr");
}

}  // namespace
}  // namespace fsdp::formats
