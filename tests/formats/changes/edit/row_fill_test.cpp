// SPDX-License-Identifier: Apache-2.0
// tests/interop/check_vocabulary.py compares rows with NumPy, of every dtype and many sizes.
#include "formats/changes/edit/row_fill.h"

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "formats/changes/arrays/array_source.h"
#include "formats/changes/arrays/computed.h"
#include "formats/front/open.h"
#include "tests/support/golden.h"

namespace fsdp::formats {
namespace {

// The weight 'w' of the smallest golden checkpoint: [[0, 1, 2], [3, 4, 5]].
class RowFillTest : public testing::Test {
 protected:
  std::vector<float> resized(std::int64_t rows, const NewRows& fill) {
    const arrays::Array table = resized_table(table_, 0, rows, fill);
    EXPECT_EQ(table.shape, (std::vector<std::int64_t>{rows, 3}));
    const arrays::ArrayReader reader(table);
    std::vector<float> out(static_cast<std::size_t>(rows) * 3);
    reader.read(0, std::as_writable_bytes(std::span(out)));
    std::vector<float> parts(out.size());
    for (std::size_t i = 0; i < parts.size(); ++i)
      reader.read(i, std::as_writable_bytes(std::span(parts).subspan(i, 1)));
    EXPECT_EQ(parts, out);
    return out;
  }

  arrays::ArraySource source_{open_checkpoint(test::data_path("golden/2.11.0/minimal/ckpt"))};
  arrays::Array table_ = source_.array(0);
};

TEST_F(RowFillTest, the_mean_is_that_of_each_column) {
  const std::vector<std::byte> row = mean_row(table_, 3);
  EXPECT_EQ(resized(4, {row, {}}),
            (std::vector<float>{0, 1, 2, 3, 4, 5, 1.5, 2.5, 3.5, 1.5, 2.5, 3.5}));
  EXPECT_EQ(mean_row(table_, 1).size(), sizeof(float));
}

TEST_F(RowFillTest, rows_are_left_out_and_zeros_are_added) {
  EXPECT_EQ(resized(1, {}), (std::vector<float>{0, 1, 2}));
  EXPECT_EQ(resized(2, {}), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(resized(3, {}), (std::vector<float>{0, 1, 2, 3, 4, 5, 0, 0, 0}));
}

// Computed with Python's integers.
TEST_F(RowFillTest, a_seed_means_the_same_everywhere) {
  EXPECT_EQ(noise_at({0, 1}, 0), 0x1.2119e9d9p+0);
  EXPECT_EQ(noise_at({0, 1}, 1), 0x1.7ac0dc6p-4);
  EXPECT_EQ(noise_at({0, 1}, std::uint64_t{1} << 40U), -0x1.90f7e4fdp+0);
  EXPECT_EQ(noise_at({~std::uint64_t{0}, 1}, 7), 0x1.0d169414p-1);
  EXPECT_EQ(noise_at({0, 0.5}, 1), 0x1.7ac0dc6p-5);
  const std::vector<float> rows = resized(3, {{}, Noise{7, 0.25}});
  for (std::size_t i = 6; i < 9; ++i)
    EXPECT_EQ(rows[i], static_cast<float>(noise_at({7, 0.25}, i))) << i;
}

}  // namespace
}  // namespace fsdp::formats
