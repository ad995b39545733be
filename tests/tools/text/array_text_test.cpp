// SPDX-License-Identifier: Apache-2.0
#include "tools/text/array_text.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <sstream>

#include <gtest/gtest.h>

namespace fsdp::cli {
namespace {

using formats::DType;

template <typename T>
std::string text_of(DType dtype, const std::vector<T>& elements, std::vector<std::int64_t> shape,
                    bool elided = false) {
  std::ostringstream out;
  ArrayPrinter printer(dtype, std::move(shape), elided, out);
  printer.add(std::as_bytes(std::span(elements)));
  printer.finish();
  return out.str();
}

TEST(ArrayPrinter, nests_brackets_and_keeps_full_precision) {
  EXPECT_EQ(text_of<float>(DType::kFloat32, {0.1F, -2, 1e-30F, 3, INFINITY, NAN}, {2, 3}),
            "[[0.1, -2.0, 1e-30],\n [3.0, inf, nan]]\n");
  EXPECT_EQ(text_of<std::int32_t>(DType::kInt32, {1, 2, 3, 4}, {2, 1, 2}),
            "[[[1, 2]],\n\n [[3, 4]]]\n");
  EXPECT_EQ(text_of<double>(DType::kFloat64, {0.1}, {}), "0.1\n");
  EXPECT_EQ(text_of<float>(DType::kFloat32, {}, {0, 3}), "[]\n");
}

TEST(ArrayPrinter, elision_keeps_three_at_each_end) {
  std::vector<std::int64_t> numbers(8 * 7);
  std::iota(numbers.begin(), numbers.end(), 0);
  EXPECT_EQ(text_of(DType::kInt64, numbers, {8, 7}, true),
            "[[0, 1, 2, ..., 4, 5, 6],\n [7, 8, 9, ..., 11, 12, 13],\n"
            " [14, 15, 16, ..., 18, 19, 20],\n ...,\n [35, 36, 37, ..., 39, 40, 41],\n"
            " [42, 43, 44, ..., 46, 47, 48],\n [49, 50, 51, ..., 53, 54, 55]]\n");
}

TEST(ElementText, every_kind_of_dtype_has_one) {
  EXPECT_EQ(text_of<std::uint16_t>(DType::kBFloat16, {0x3DCD, 0xFF80}, {2}),
            "[0.100097656, -inf]\n");
  EXPECT_EQ(text_of<std::uint8_t>(DType::kBool, {1, 0}, {2}), "[True, False]\n");
  EXPECT_EQ(text_of<float>(DType::kComplex64, {1, -2, 0, NAN}, {2}), "[(1.0-2.0j), (0.0+nanj)]\n");
  EXPECT_EQ(text_of<std::uint64_t>(DType::kUInt64, {UINT64_MAX}, {1}), "[18446744073709551615]\n");
  EXPECT_EQ(text_of<std::uint16_t>(DType::kBits16, {0xBEEF}, {1}), "[0xbeef]\n");
  EXPECT_EQ(text_of<std::uint8_t>(DType::kFloat8E4M3FN, {0x38, 0x7F}, {2}), "[1.0, nan]\n");
}

TEST(ElementJson, numbers_stay_numbers_and_the_rest_is_text) {
  const auto json = [](DType dtype, const auto& element) {
    return formats::to_text(element_json(dtype, std::as_bytes(std::span(&element, 1))));
  };
  EXPECT_EQ(json(DType::kFloat32, 0.1F), "0.1");
  EXPECT_EQ(json(DType::kFloat64, -std::numeric_limits<double>::infinity()), "\"-Infinity\"");
  EXPECT_EQ(json(DType::kFloat32, NAN), "\"NaN\"");
  EXPECT_EQ(json(DType::kInt8, std::int8_t{-3}), "-3");
  EXPECT_EQ(json(DType::kBool, std::uint8_t{1}), "true");
  EXPECT_EQ(json(DType::kBits8, std::uint8_t{10}), "\"0x0a\"");
}

}  // namespace
}  // namespace fsdp::cli
