// SPDX-License-Identifier: Apache-2.0
// Arithmetic on elements; tests/interop/check_map.py compares it with PyTorch in every dtype.
#include "formats/changes/arrays/elementwise.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"
#include "tests/formats/changes/arrays/dense_operand.h"

namespace fsdp::formats::arrays {
namespace {

template <typename T>
std::vector<T> read(const Array& array) {
  std::vector<T> out(volume({array.shape, array.shape}));
  ArrayReader(array).read(0, std::as_writable_bytes(std::span(out)));
  return out;
}

ElementStep cast(DType to) {
  ElementStep step;
  step.to = to;
  return step;
}

TEST(Elementwise, constants_have_one_value_in_any_dtype) {
  EXPECT_EQ(read<float>(constant_array(DType::kFloat32, {2, 3}, 0.5)), std::vector<float>(6, 0.5F));
  EXPECT_EQ(read<double>(constant_array(DType::kFloat64, {2}, 0.1)), std::vector<double>(2, 0.1));
  EXPECT_EQ(read<std::uint16_t>(constant_array(DType::kBFloat16, {2}, 1)),
            std::vector<std::uint16_t>(2, 0x3F80));
  EXPECT_EQ(read<std::int64_t>(constant_array(DType::kInt64, {3}, 0)),
            std::vector<std::int64_t>(3, 0));
}

TEST(Elementwise, a_step_is_rounded_once_to_even) {
  // 1 + 2^-8 lies between two bfloat16s and goes to the even one, 1; 1 + 3 * 2^-8 to 1 + 2^-6.
  const Array low = constant_array(DType::kFloat32, {1}, 1 + 1.0 / 256);
  const Array high = constant_array(DType::kFloat32, {1}, 1 + 3.0 / 256);
  EXPECT_EQ(read<std::uint16_t>(with_step(low, cast(DType::kBFloat16)))[0], 0x3F80);
  EXPECT_EQ(read<std::uint16_t>(with_step(high, cast(DType::kBFloat16)))[0], 0x3F82);
}

TEST(Elementwise, steps_follow_each_other_and_moves_stay_moves) {
  Array array = constant_array(DType::kFloat64, {2, 3}, 4);
  array = with_step(array, {Arithmetic::kScale, DType::kFloat64, 0.25});
  const std::size_t order[] = {1, 0};
  array = permuted(array, order);
  array = with_step(array, {Arithmetic::kAdd, DType::kFloat64, -0.5});
  EXPECT_EQ(array.shape, (std::vector<std::int64_t>{3, 2}));
  EXPECT_EQ(read<double>(array), std::vector<double>(6, 0.5));
}

TEST(Elementwise, float32_is_not_computed_in_float64) {
  // (2^24 + 1) is not a float32: the sum stays 2^24.
  const Array array = with_step(constant_array(DType::kFloat32, {1}, 16777216),
                                {Arithmetic::kAdd, DType::kFloat32, 1});
  EXPECT_EQ(read<float>(array)[0], 16777216.0F);
  const Array nan = constant_array(DType::kFloat32, {1}, std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(std::isnan(read<float>(with_step(nan, {Arithmetic::kScale, DType::kFloat32, 0}))[0]));
}

TEST(Elementwise, a_computed_tensor_is_read_by_whole_elements) {
  const Array array = constant_array(DType::kFloat32, {6}, 1);
  const ChunkData data = array.parts.at(0).operand->open(0);
  std::vector<std::byte> out(24);
  data.source->read_at(4, std::span(out).first(20));
  EXPECT_THROW(data.source->read_at(2, std::span(out).first(4)), Error);
  EXPECT_THROW(data.source->read_at(0, std::span(out).first(2)), Error);
  EXPECT_THROW(data.source->read_at(4, out), Error);
}

}  // namespace
}  // namespace fsdp::formats::arrays
