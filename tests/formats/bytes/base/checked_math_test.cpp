// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/checked_math.h"

#include <vector>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fsdp::formats {
namespace {

using test::expect_error;

constexpr std::uint64_t kMost = ~std::uint64_t{0};

TEST(CheckedMath, adds_and_multiplies_up_to_the_largest_number) {
  EXPECT_EQ(checked_add(kMost - 5, 5, "size"), kMost);
  EXPECT_EQ(checked_add(0, 0, "size"), 0U);
  EXPECT_EQ(checked_mul(kMost / 5, 5, "size"), kMost);
  EXPECT_EQ(checked_mul(kMost, 0, "size"), 0U);
}

TEST(CheckedMath, overflow_names_what_and_both_numbers) {
  expect_error(ErrorCode::kOverflow, "end of chunk overflows: 18446744073709551615 + 1",
               [] { checked_add(kMost, 1, "end of chunk"); });
  expect_error(ErrorCode::kOverflow, "bytes overflows: 4294967296 * 4294967296",
               [] { checked_mul(std::uint64_t{1} << 32U, std::uint64_t{1} << 32U, "bytes"); });
}

TEST(CheckedNumel, is_the_product_of_the_sizes) {
  EXPECT_EQ(checked_numel({}, "w"), 1U);
  EXPECT_EQ(checked_numel(std::vector<std::int64_t>{2, 3, 4}, "w"), 24U);
  EXPECT_EQ(checked_numel(std::vector<std::int64_t>{INT64_MAX, 1}, "w"),
            static_cast<std::uint64_t>(INT64_MAX));
}

TEST(CheckedNumel, is_0_with_an_empty_dimension_whatever_the_others_are) {
  EXPECT_EQ(checked_numel(std::vector<std::int64_t>{INT64_MAX, INT64_MAX, 0}, "w"), 0U);
  EXPECT_EQ(checked_numel(std::vector<std::int64_t>{0}, "w"), 0U);
}

TEST(CheckedNumel, refuses_more_elements_than_an_index_can_count) {
  expect_error(ErrorCode::kOverflow, "shape of w has more than 2^63 - 1 elements", [] {
    checked_numel(std::vector<std::int64_t>{std::int64_t{1} << 32U, std::int64_t{1} << 31U},
                  "shape of w");
  });
  expect_error(ErrorCode::kOverflow, "shape of w", [] {
    checked_numel(std::vector<std::int64_t>{INT64_MAX, INT64_MAX, INT64_MAX}, "shape of w");
  });
}

}  // namespace
}  // namespace fsdp::formats
