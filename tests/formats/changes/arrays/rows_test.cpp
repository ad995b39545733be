// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/arrays/rows.h"

#include <cstdint>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "tests/formats/changes/arrays/dense_operand.h"

namespace fsdp::formats::arrays {
namespace {

using Rows = std::vector<std::uint32_t>;

std::vector<std::int64_t> chosen(const Array& matrix, Rows rows) {
  const Array array = chosen_rows(matrix, std::make_shared<const Rows>(std::move(rows)));
  EXPECT_EQ(array.shape[1], matrix.shape[1]);
  return elements_of(array);
}

TEST(Rows, are_chosen_in_any_order_and_again) {
  // 1 2 3 | 4 5 6 | 7 8 9 | 10 11 12, two rows a chunk.
  const Array matrix = array_of(counted({4, 3}), 2);
  EXPECT_EQ(chosen(matrix, {3, 0, 0, 2}),
            (std::vector<std::int64_t>{10, 11, 12, 1, 2, 3, 1, 2, 3, 7, 8, 9}));
  EXPECT_EQ(chosen(matrix, {1}), (std::vector<std::int64_t>{4, 5, 6}));
  EXPECT_TRUE(chosen(matrix, {}).empty());
}

TEST(Rows, are_chosen_of_a_transposed_matrix) {
  const std::size_t order[] = {1, 0};
  EXPECT_EQ(chosen(permuted(array_of(counted({2, 3})), order), {2, 0}),
            (std::vector<std::int64_t>{3, 6, 1, 4}));
}

TEST(Rows, a_part_that_begins_inside_a_row) {
  const auto rows = std::make_shared<const Rows>(Rows{2, 1});
  const Array part = sliced(chosen_rows(array_of(counted({3, 4})), rows), 1, 1, 2);
  EXPECT_EQ(elements_of(part), (std::vector<std::int64_t>{10, 11, 6, 7}));
}

}  // namespace
}  // namespace fsdp::formats::arrays
