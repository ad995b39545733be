// SPDX-License-Identifier: Apache-2.0
// tests/interop/check_vocabulary.py compares rows with NumPy, of every dtype and many sizes.
#include "formats/changes/edit/row_fill.h"

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"
#include "formats/changes/edit/resized_table.h"
#include "formats/front/open.h"
#include "tests/support/golden.h"

namespace fsdp::formats {
namespace {

// The weight 'w' of the smallest golden checkpoint: [[0, 1, 2], [3, 4, 5]].
class RowFillTest : public testing::Test {
 protected:
  std::unique_ptr<InputReader> reader() {
    return std::make_unique<InputReader>(InputTensor{checkpoint_.get(), 0}, checks_);
  }
  std::vector<float> resized(std::uint64_t rows, NewRows fill) {
    const ResizedTable table(reader(), 2, rows, 3, std::move(fill));
    std::vector<float> out(rows * 3);
    EXPECT_EQ(table.size(), rows * 12);
    table.read_at(0, std::as_writable_bytes(std::span(out)));
    std::vector<float> parts(rows * 3);
    for (std::size_t i = 0; i < parts.size(); ++i)
      table.read_at(i * sizeof(float), std::as_writable_bytes(std::span(parts).subspan(i, 1)));
    EXPECT_EQ(parts, out);
    EXPECT_THROW(table.read_at(2, std::as_writable_bytes(std::span(out).first(1))), Error);
    EXPECT_THROW(table.read_at(4, std::as_writable_bytes(std::span(out))), Error);
    return out;
  }

  std::unique_ptr<Checkpoint> checkpoint_ =
      open_checkpoint(test::data_path("golden/2.11.0/minimal/ckpt"));
  StorageChecks checks_{true};
};

TEST_F(RowFillTest, the_mean_is_that_of_each_column) {
  const std::vector<std::byte> row = mean_row(*reader(), 6, 3);
  EXPECT_EQ(resized(4, {row, {}}),
            (std::vector<float>{0, 1, 2, 3, 4, 5, 1.5, 2.5, 3.5, 1.5, 2.5, 3.5}));
  EXPECT_EQ(mean_row(*reader(), 6, 1).size(), sizeof(float));
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
