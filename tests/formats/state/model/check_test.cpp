// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/check.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

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
  EXPECT_THAT(findings[0].message, HasSubstr("none covers [2:4, 2:4]"));
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
  EXPECT_THAT(findings[0].message, HasSubstr("none covers [777777:777778, 0:2]"));
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

// Returns chunk i of a grid that halves a tensor of `rank` dimensions along the first `cuts`.
TensorEntry halves(std::size_t rank, std::size_t cuts, std::int64_t without) {
  TensorEntry entry{
      "w", {"w"}, DType::kFloat32, std::vector<std::int64_t>(rank, 2), ChunkList(rank)};
  for (std::int64_t i = 0; i < std::int64_t{1} << cuts; ++i) {
    if (i == without) continue;
    std::vector<std::int64_t> offset(rank, 0);
    std::vector<std::int64_t> size(rank, 2);
    for (std::size_t d = 0; d < cuts; ++d) {
      offset[d] = i >> d & 1;
      size[d] = 1;
    }
    entry.chunks.add(offset, size, {});
  }
  return entry;
}

TEST(CheckCoverage, a_grid_of_16_dimensions_is_decided) {
  EXPECT_TRUE(check(halves(16, 16, -1)).empty());
  const auto findings = check(halves(16, 16, 4711));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].code, ErrorCode::kHole);
  EXPECT_THAT(findings[0].message, HasSubstr("65535 of 65536"));
  EXPECT_THAT(findings[0].message, HasSubstr("none covers [1:2, 1:2, 1:2, 0:1"));
}

TEST(CheckCoverage, slabs_that_cross_everywhere_are_overlaps) {
  constexpr std::int64_t kSlabs = 20'000;
  TensorEntry entry{"w", {"w"}, DType::kFloat32, {kSlabs, kSlabs}, ChunkList(2)};
  using Numbers = std::vector<std::int64_t>;
  for (std::int64_t i = 0; i < kSlabs; ++i) entry.chunks.add(Numbers{i, 0}, Numbers{1, kSlabs}, {});
  for (std::int64_t i = 0; i < kSlabs; ++i) entry.chunks.add(Numbers{0, i}, Numbers{kSlabs, 1}, {});
  const auto findings = check(entry);
  ASSERT_EQ(findings.size(), 8U);
  EXPECT_EQ(findings[0].code, ErrorCode::kOverlap);
}

// Bars along three axes that do not meet: any cut of the tensor splits a third of them.
TensorEntry crossing_bars(std::int64_t count) {
  const std::int64_t n = 2 * count;
  TensorEntry entry{"w", {"w"}, DType::kFloat32, {n, n, n}, ChunkList(3)};
  using Numbers = std::vector<std::int64_t>;
  for (std::int64_t a = 0; a < n; a += 2) {
    for (std::int64_t b = 0; b < n; b += 2) {
      entry.chunks.add(Numbers{0, a, b}, Numbers{n, 1, 1}, {});
      entry.chunks.add(Numbers{a, 0, b + 1}, Numbers{1, n, 1}, {});
      entry.chunks.add(Numbers{a + 1, b + 1, 0}, Numbers{1, 1, n}, {});
    }
  }
  return entry;
}

TEST(CheckCoverage, a_search_without_end_is_given_up) {
  const auto findings = check(crossing_bars(20));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].code, ErrorCode::kHole);
  // With unit cubes in the gaps the volumes no longer tell.
  TensorEntry filled = crossing_bars(20);
  using Numbers = std::vector<std::int64_t>;
  for (std::int64_t a = 0; a < 40; a += 2) {
    for (std::int64_t b = 0; b < 40; b += 2) {
      for (std::int64_t c = 0; c < 40; c += 2) {
        filled.chunks.add(Numbers{a, b + 1, c}, Numbers{1, 1, 1}, {});
        filled.chunks.add(Numbers{a + 1, b, c + 1}, Numbers{1, 1, 1}, {});
      }
    }
  }
  const auto of_filled = check(filled);
  ASSERT_LE(of_filled.size(), 1U);
  for (const Finding& finding : of_filled) EXPECT_EQ(finding.code, ErrorCode::kLimitNodes);
}

TEST(CheckExpansion, tensors_are_in_proportion_to_the_files) {
  Index index;
  index.files = {{"a", 1000, 0}};
  index.add(TensorEntry{"w", {"w"}, DType::kFloat32, {16 << 20, 2}, ChunkList(2)});
  check_expansion(index, "folder");  // 128 MiB
  index.add(TensorEntry{"once.more", {"x"}, DType::kFloat32, {20'000}, ChunkList(1)});
  test::expect_error(ErrorCode::kLimitRatio, "folder: 'w': float32 [16777216, 2] is 128.0 MiB",
                     [&] { check_expansion(index, "folder"); });
  index.files[0].bytes = 2000;
  check_expansion(index, "folder");
  index.add(TensorEntry{"huge", {"h"}, DType::kFloat32, {std::int64_t{1} << 60}, ChunkList(1)});
  index.add(TensorEntry{"huge2", {"h2"}, DType::kFloat32, {std::int64_t{1} << 60}, ChunkList(1)});
  index.files[0].bytes = std::uint64_t{1} << 40;
  test::expect_error(ErrorCode::kLimitRatio, "'huge'", [&] { check_expansion(index, "folder"); });
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
  for (const char* key : {"x", "y"}) {
    TensorEntry whole{key, {key}, DType::kFloat32, {1}, ChunkList(1)};
    whole.chunks.add(std::vector<std::int64_t>{0}, std::vector<std::int64_t>{1}, {0, 0, 0, 100});
    index.add(whole);
  }
  index.add(ValueEntry{"v", {"v"}, {2, 0, 0, 5}});
  Findings findings;
  check_extents(index, findings);
  ASSERT_EQ(findings.size(), 3U);
  EXPECT_EQ(findings[0].code, ErrorCode::kExtent);
  EXPECT_THAT(findings[0].message, HasSubstr("which has 100"));
  EXPECT_EQ(findings[1].code, ErrorCode::kShardMissing);
  EXPECT_EQ(findings[1].file, "b");
  EXPECT_THAT(findings[1].message, HasSubstr("the first is 'w'; 2 of 3 tensors are whole"));
  EXPECT_EQ(findings[1].hint.remedy, Remedy::kTakeWhole);
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
