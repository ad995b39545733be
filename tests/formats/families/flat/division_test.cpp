// SPDX-License-Identifier: Apache-2.0
#include "formats/families/flat/division.h"

#include <string>

#include <gtest/gtest.h>

#include "formats/bytes/base/text.h"

namespace fsdp::formats::flat {
namespace {

using Numbers = std::vector<std::int64_t>;

// "4: 0 4 12, 3-4 9-12"
std::string text(const Numbers& numels, const FlatSize& flat) {
  std::string out;
  for (const Division& division : divisions(numels, flat)) {
    out += out.empty() ? "" : "; ";
    out += cat(division.alignment, ":");
    for (const std::int64_t begin : division.begins) out += cat(" ", begin);
    for (const FlatRange& range : division.padding) out += cat(", ", range.begin, "-", range.end);
  }
  return out;
}

// The sizes and offsets that PyTorch 2.11 has on 3 ranks for parameters of these sizes.
TEST(Division, follows_fsdp_with_and_without_alignment) {
  EXPECT_EQ(text({1, 21, 3, 49, 7}, {.numel = 81, .shard = 27}), "0: 0 1 22 25 74");
  EXPECT_EQ(text({1, 21, 3, 49, 7}, {.numel = 93, .shard = 31}),
            "4: 0 4 28 32 84, 1-4, 25-28, 31-32, 81-84, 91-93");
  EXPECT_EQ(text({35, 3, 1}, {.numel = 39, .shard = 13}), "0: 0 35 38");
  EXPECT_EQ(text({35, 3, 1}, {.numel = 42, .shard = 14}), "2: 0 36 40, 35-36, 39-40, 41-42");
}

TEST(Division, padding_at_the_end_is_less_than_the_ranks) {
  EXPECT_EQ(text({5}, {.numel = 6, .shard = 3}), "2: 0, 5-6");
  EXPECT_EQ(text({5}, {.numel = 8, .shard = 4}), "");
  EXPECT_EQ(text({5}, {.numel = 7, .shard = 3}), "");
  EXPECT_EQ(text({5}, {.numel = 5, .shard = 3}), "0: 0");
}

TEST(Division, parts_that_kept_their_padding_end_in_it) {
  EXPECT_EQ(text({5, 2}, {.numel = 8, .shard = 4, .padded = true}), "0: 0 5, 7-8; 2: 0 6, 5-6");
  EXPECT_EQ(text({5, 2}, {.numel = 9, .shard = 3, .padded = true}),
            "0: 0 5, 7-9; 2: 0 6, 5-6, 8-9");
  EXPECT_EQ(text({5, 1}, {.numel = 9, .shard = 3, .padded = true}),
            "2: 0 6, 5-6, 7-9; 4: 0 8, 5-8");
}

TEST(Division, several_alignments_may_give_one_size) {
  EXPECT_EQ(text({1, 4, 1}, {.numel = 9, .shard = 3}), "2: 0 2 6, 1-2, 7-9; 4: 0 4 8, 1-4");
}

TEST(Division, sizes_beyond_63_bits_fit_nothing) {
  const std::int64_t most = INT64_MAX;
  EXPECT_EQ(text({most, most}, {.numel = most, .shard = most}), "");
  EXPECT_EQ(text({most}, {.numel = most, .shard = most}), "0: 0");
  EXPECT_EQ(text({0, 0}, {.numel = 0, .shard = 0}), "0: 0 0");
}

}  // namespace
}  // namespace fsdp::formats::flat
