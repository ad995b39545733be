// SPDX-License-Identifier: Apache-2.0
// The operation low_rank; tests/interop/check_lora.py compares it with NumPy in every dtype.
#include "formats/changes/arrays/low_rank_update.h"

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "formats/changes/arrays/elementwise.h"
#include "formats/changes/map/operation.h"
#include "tests/formats/changes/arrays/dense_operand.h"
#include "tests/support/expect_error.h"

namespace fsdp::formats::arrays {
namespace {

using test::expect_error;
using Shape = std::vector<std::int64_t>;

// The numbers `values` in columns of as many rows, put together from constants.
Array row(const std::vector<double>& values) {
  std::vector<Array> parts;
  for (const double value : values) parts.push_back(constant_array(DType::kFloat32, {1, 1}, value));
  return concatenated(parts, 1);
}

Array column(const std::vector<double>& values) {
  const std::size_t order[] = {1, 0};
  return permuted(row(values), order);
}

std::vector<float> read(const Array& array) {
  std::vector<float> out(volume({array.shape, array.shape}));
  ArrayReader(array).read(0, std::as_writable_bytes(std::span(out)));
  return out;
}

TEST(LowRankUpdate, the_scaled_product_is_added) {
  const Array w = constant_array(DType::kFloat32, {2, 3}, 100);
  EXPECT_EQ(read(with_low_rank_update(w, {row({1, 2, 3}), column({10, 20}), 0.5})),
            (std::vector<float>{105, 110, 115, 110, 120, 130}));
}

TEST(LowRankUpdate, a_turned_weight_gets_the_transposed_product) {
  const Array w = constant_array(DType::kFloat32, {3, 2}, 0);
  EXPECT_EQ(read(with_low_rank_update(w, {row({1, 2, 3}), column({10, 20}), 1, true})),
            (std::vector<float>{10, 20, 20, 40, 30, 60}));
}

TEST(LowRankUpdate, moves_before_and_after_it_stay_moves) {
  const std::size_t order[] = {1, 0};
  const Array w = permuted(constant_array(DType::kFloat32, {3, 2}, 1), order);
  const Array made =
      permuted(with_low_rank_update(w, {row({1, 2, 3}), column({10, 20}), 1}), order);
  EXPECT_EQ(made.shape, (Shape{3, 2}));
  EXPECT_EQ(read(made), (std::vector<float>{11, 21, 21, 41, 31, 61}));
}

TEST(LowRankUpdate, an_empty_weight_stays_as_it_is) {
  const Array w = constant_array(DType::kFloat32, {0, 3}, 0);
  const Array b = constant_array(DType::kFloat32, {0, 1}, 0);
  EXPECT_EQ(with_low_rank_update(w, {row({1, 2, 3}), b, 1}).shape, (Shape{0, 3}));
}

TEST(LowRankUpdate, what_does_not_fit_is_refused) {
  const auto zeros = [](Shape shape, DType dtype = DType::kFloat32) {
    return constant_array(dtype, std::move(shape), 0);
  };
  const auto refused = [](ErrorCode code, const char* says, std::vector<Array> arrays,
                          bool turned = false) {
    expect_error(code, says, [&] {
      with_low_rank_update(arrays.at(0), {arrays.at(1), arrays.at(2), 1, turned});
    });
  };
  refused(ErrorCode::kShape, "not [2, 3], [1, 4] and [2, 1]",
          {zeros({2, 3}), zeros({1, 4}), zeros({2, 1})});
  refused(ErrorCode::kShape, "A [rank, in] and B [out, rank]",
          {zeros({2, 3}), zeros({1, 3}), zeros({2, 2})});
  refused(ErrorCode::kShape, "not [2, 3], [0, 3]", {zeros({2, 3}), zeros({0, 3}), zeros({2, 0})});
  refused(ErrorCode::kShape, "W [in, out]", {zeros({2, 3}), zeros({1, 3}), zeros({2, 1})}, true);
  refused(ErrorCode::kShape, "[2, 3, 1]", {zeros({2, 3, 1}), zeros({1, 3}), zeros({2, 1})});
  refused(ErrorCode::kDtype, "takes floating tensors, not int64",
          {zeros({2, 3}), zeros({1, 3}, DType::kInt64), zeros({2, 1})});
}

}  // namespace
}  // namespace fsdp::formats::arrays
