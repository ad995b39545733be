// SPDX-License-Identifier: Apache-2.0
#include "formats/model/check.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

using testing::HasSubstr;

TensorEntry tensor(std::vector<std::int64_t> shape, const std::vector<Box>& chunks) {
  TensorEntry entry{"w", {"w"}, DType::kFloat32, shape, ChunkList(shape.size())};
  for (const Box& box : chunks) entry.chunks.add(box.offset, box.size, {});
  return entry;
}

Findings check(const TensorEntry& entry) {
  Findings findings;
  check_coverage(entry, findings);
  return findings;
}

TEST(CheckCoverage, chunks_that_tile_the_tensor_are_sound) {
  EXPECT_TRUE(check(tensor({7}, {{{0}, {3}}, {{3}, {3}}, {{6}, {1}}})).empty());
  EXPECT_TRUE(
      check(tensor({4, 4}, {{{0, 0}, {2, 4}}, {{2, 0}, {2, 1}}, {{2, 1}, {2, 3}}})).empty());
  EXPECT_TRUE(check(tensor({}, {Box{}})).empty());
  EXPECT_TRUE(check(tensor({0, 5}, {})).empty());
}

TEST(CheckCoverage, order_of_chunks_does_not_matter) {
  EXPECT_TRUE(check(tensor({10}, {{{5}, {3}}, {{0}, {5}}, {{8}, {2}}})).empty());
}

TEST(CheckCoverage, chunks_without_elements_are_ignored_wherever_they_lie) {
  EXPECT_TRUE(check(tensor({1}, {{{0}, {1}}, {{1}, {0}}, {{1}, {0}}})).empty());
}

TEST(CheckCoverage, a_hole_is_named_by_its_rows) {
  const auto findings = check(tensor({1000}, {{{0}, {900}}}));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].code, ErrorCode::kHole);
  EXPECT_THAT(findings[0].message, HasSubstr("900 of 1000"));
  EXPECT_THAT(findings[0].message, HasSubstr("none covers [900:1000]"));
}

TEST(CheckCoverage, a_hole_in_the_middle_is_named) {
  const auto findings = check(tensor({8, 2}, {{{0, 0}, {2, 2}}, {{5, 0}, {3, 2}}}));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_THAT(findings[0].message, HasSubstr("none covers [2:5, 0:2]"));
}

TEST(CheckCoverage, a_hole_in_a_grid_is_named) {
  const auto findings =
      check(tensor({4, 4}, {{{0, 0}, {2, 2}}, {{0, 2}, {2, 2}}, {{2, 0}, {2, 2}}}));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].code, ErrorCode::kHole);
  EXPECT_THAT(findings[0].message, HasSubstr("none covers [2:3, 2:4]"));
}

TEST(CheckCoverage, no_chunk_at_all_is_a_hole) {
  const auto findings = check(tensor({3}, {}));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].code, ErrorCode::kHole);
  EXPECT_THAT(findings[0].message, HasSubstr("[0:3]"));
}

TEST(CheckCoverage, an_overlap_names_both_chunks) {
  const auto findings = check(tensor({10}, {{{0}, {6}}, {{5}, {5}}}));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].code, ErrorCode::kOverlap);
  EXPECT_THAT(findings[0].message, HasSubstr("[0:6] and [5:10]"));
}

TEST(CheckCoverage, the_same_chunk_twice_is_an_overlap) {
  EXPECT_EQ(check(tensor({4}, {{{0}, {4}}, {{0}, {4}}})).at(0).code, ErrorCode::kOverlap);
  EXPECT_EQ(check(tensor({}, {Box{}, Box{}})).at(0).code, ErrorCode::kOverlap);
}

TEST(CheckCoverage, an_overlap_does_not_hide_a_hole_of_the_same_size) {
  const auto findings = check(tensor({10}, {{{0}, {5}}, {{0}, {5}}}));
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_EQ(findings[0].code, ErrorCode::kOverlap);
  EXPECT_EQ(findings[1].code, ErrorCode::kHole);
  EXPECT_THAT(findings[1].message, HasSubstr("[5:10]"));
}

TEST(CheckCoverage, a_chunk_out_of_bounds_is_named) {
  const auto findings = check(tensor({10}, {{{0}, {8}}, {{8}, {3}}}));
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings[0].code, ErrorCode::kBounds);
  EXPECT_THAT(findings[0].message, HasSubstr("[8:11]"));
  EXPECT_EQ(check(tensor({10}, {{{INT64_MAX}, {1}}})).at(0).code, ErrorCode::kBounds);
}

TEST(CheckCoverage, a_million_chunks_of_one_dimension_are_checked) {
  TensorEntry entry{"w", {"w"}, DType::kFloat32, {1'000'000, 2}, ChunkList(2)};
  for (std::int64_t i = 0; i < 1'000'000; ++i) {
    if (i != 777'777)
      entry.chunks.add(std::vector<std::int64_t>{i, 0}, std::vector<std::int64_t>{1, 2}, {});
  }
  const auto findings = check(entry);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_THAT(findings[0].message, HasSubstr("1999998 of 2000000"));
}

// A random tiling, made by cutting boxes in two, with one chunk then dropped, doubled or moved.
TEST(CheckCoverage, random_tilings_are_sound_until_one_chunk_is_touched) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const std::vector<std::int64_t> shape = {9, 7, 5};
    std::vector<Box> chunks = {whole_box(shape)};
    for (int cut = 0; cut < 12; ++cut) {
      const std::size_t which = random() % chunks.size();
      const std::size_t d = random() % 3;
      if (chunks[which].size[d] < 2) continue;
      Box second = chunks[which];
      const std::int64_t at =
          1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(second.size[d] - 1));
      chunks[which].size[d] = at;
      second.offset[d] += at;
      second.size[d] -= at;
      chunks.push_back(second);
    }
    std::shuffle(chunks.begin(), chunks.end(), random);
    ASSERT_TRUE(check(tensor(shape, chunks)).empty());
    std::vector<Box> holed = chunks;
    holed.pop_back();
    ASSERT_EQ(check(tensor(shape, holed)).at(0).code, ErrorCode::kHole);
    std::vector<Box> doubled = chunks;
    doubled.push_back(chunks[random() % chunks.size()]);
    ASSERT_EQ(check(tensor(shape, doubled)).at(0).code, ErrorCode::kOverlap);
  }
}

TEST(CheckExtents, items_past_the_end_and_missing_files_are_all_named) {
  Index index;
  index.files = {{"a", 100, 0}, {"b", std::nullopt, 1}, {"c", std::nullopt, 2}};
  TensorEntry entry{"w", {"w"}, DType::kFloat32, {3}, ChunkList(1)};
  const auto add = [&](std::int64_t at, Location location) {
    entry.chunks.add(std::vector<std::int64_t>{at}, std::vector<std::int64_t>{1}, location);
  };
  add(0, {0, 0, 0, 100});
  add(1, {0, 0, 90, 11});
  add(2, {1, 0, 0, 5});
  index.add(entry);
  index.add(ValueEntry{"v", {"v"}, {2, 0, 0, 5}});
  Findings findings;
  check_extents(index, findings);
  ASSERT_EQ(findings.size(), 3U);
  EXPECT_EQ(findings[0].code, ErrorCode::kExtent);
  EXPECT_THAT(findings[0].message, HasSubstr("which has 100"));
  EXPECT_EQ(findings[1].code, ErrorCode::kShardMissing);
  EXPECT_EQ(findings[1].file, "b");
  EXPECT_EQ(findings[2].file, "c");
}

TEST(CheckExtents, a_file_that_was_cut_off_is_one_finding_and_its_first_item_is_named) {
  Index index;
  index.files = {{"a", 100, 0}};
  for (const std::uint64_t offset : {300U, 90U, 200U}) {
    index.add(ValueEntry{std::to_string(offset), {std::to_string(offset)}, {0, 0, offset, 50}});
  }
  Findings findings;
  check_extents(index, findings);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].key, "90");
  EXPECT_THAT(findings[0].message, HasSubstr("50 bytes at byte 90 reach past the end of the file, "
                                             "which has 100; so do 2 other items in it"));
}

}  // namespace
}  // namespace fsdp::formats
