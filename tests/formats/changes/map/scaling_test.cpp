// SPDX-License-Identifier: Apache-2.0
// Numbers with scales; tests/interop/check_map.py compares them with PyTorch, check_maps.py with
// transformers.
#include "formats/changes/map/scaling.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "formats/bytes/base/cast.h"
#include "formats/changes/arrays/elementwise.h"
#include "tests/formats/changes/arrays/byte_operand.h"
#include "tests/formats/changes/arrays/dense_operand.h"
#include "tests/support/expect_error.h"

namespace fsdp::formats::map {
namespace {

using arrays::Array;
using arrays::array_of;
using arrays::ArrayReader;
using arrays::bytes_array;
using arrays::bytes_of;
using arrays::constant_array;
using arrays::counted;
using arrays::floats_array;
using arrays::floats_of;

using test::expect_error;
using Shape = std::vector<std::int64_t>;

std::vector<Array> scaled_by(const std::string& text, std::vector<Array> arrays) {
  const RuleNode root = parse_rule_node("op = " + text + "\n");
  const auto parameter = [](const std::string& name) -> std::int64_t {
    throw Error(ErrorCode::kUsage, "no " + name);
  };
  return applied(parse_operation(root.as_table()->at(0).second), std::move(arrays), 1, parameter);
}

// Codes of float8_e4m3fn: 0x38 is 1, 0x40 is 2, 0xB8 is -1, 0x30 is 0.5.
TEST(Scaling, a_number_is_multiplied_with_the_scale_of_its_block) {
  const Array numbers =
      bytes_array(DType::kFloat8E4M3FN, {2, 3}, {0x38, 0x40, 0xB8, 0x30, 0, 0x38});
  const Array scales = floats_array({1, 2}, {10, 3});
  const auto out =
      scaled_by("{ op = \"dequantize\", block = [2, 2], to = \"float32\" }", {numbers, scales});
  ASSERT_EQ(out.size(), 1U);
  EXPECT_EQ(out[0].shape, (Shape{2, 3}));
  EXPECT_EQ(floats_of(out[0]), (std::vector<float>{10, 20, -3, 5, 0, 3}));
  EXPECT_EQ(scaled_by("\"dequantize\"", {numbers, floats_array({1, 1}, {1})})[0].dtype,
            DType::kBFloat16);
}

TEST(Scaling, rows_and_tensors_have_scales_too) {
  const Array numbers = bytes_array(DType::kFloat8E4M3FN, {2, 2}, {0x38, 0x40, 0xB8, 0x30});
  for (const Shape& shape : {Shape{2}, Shape{2, 1}}) {
    const auto rows = scaled_by("{ op = \"dequantize\", scales = \"rows\" }",
                                {numbers, floats_array(shape, {2, 8})});
    EXPECT_EQ(floats_of(rows[0]), (std::vector<float>{2, 4, -8, 4}));
  }
  for (const Shape& shape : {Shape{}, Shape{1}, Shape{1, 1}}) {
    const auto whole = scaled_by("{ op = \"dequantize\", scales = \"tensor\" }",
                                 {numbers, floats_array(shape, {4})});
    EXPECT_EQ(floats_of(whole[0]), (std::vector<float>{4, 8, -4, 2}));
  }
}

TEST(Scaling, mxfp4_holds_the_first_number_in_the_low_half) {
  std::vector<int> bytes(16, 0);
  bytes[0] = 0x72;   // 1, 6
  bytes[15] = 0x9C;  // -2, -0.5
  const auto out = scaled_by(
      "{ op = \"dequantize\", scales = \"mxfp4\" }",
      {bytes_array(DType::kUInt8, {1, 16}, bytes), bytes_array(DType::kUInt8, {1}, {129})});
  EXPECT_EQ(out[0].shape, (Shape{32}));
  const std::vector<float> numbers = floats_of(out[0]);
  EXPECT_EQ(numbers[0], 4);
  EXPECT_EQ(numbers[1], 24);
  EXPECT_EQ(numbers[2], 0);
  EXPECT_EQ(numbers[30], -8);
  EXPECT_EQ(numbers[31], -2);
  // Reads may begin in the middle of a byte.
  std::vector<float> tail(3);
  std::vector<std::byte> raw(6);
  ArrayReader(out[0]).read(29, raw);
  cast(DType::kBFloat16, raw, DType::kFloat32, std::as_writable_bytes(std::span(tail)));
  EXPECT_EQ(tail, (std::vector<float>{0, -8, -2}));
}

TEST(Scaling, the_largest_of_a_block_becomes_448) {
  const auto out = scaled_by("{ op = \"quantize\", block = [1, 2] }",
                             {floats_array({2, 3}, {7, -3.5, 0, -0.0F, 0, 1e-40F})});
  ASSERT_EQ(out.size(), 2U);
  EXPECT_EQ(floats_of(out[0]), (std::vector<float>{448, -224, 0, 0, 0, 0}));
  EXPECT_TRUE(std::signbit(floats_of(out[0])[3]));
  EXPECT_EQ(out[1].shape, (Shape{2, 2}));
  // Blocks of zeros, and of numbers that no factor brings to 448, have the scale 1.
  EXPECT_EQ(floats_of(out[1]), (std::vector<float>{7.0F / 448, 1, 1, 1}));
}

// What a scheme stores is put together again: the tensors of a weight are in the order of
// quantized::Role, those of several weights role by role.
TEST(Scaling, every_scheme_is_undone) {
  const Array ones = constant_array(DType::kFloat32, {2, 256}, 1);
  const Array twos = constant_array(DType::kFloat32, {2, 256}, 2);
  struct Case {
    std::string scheme;
    std::vector<DType> stored;
  };
  const std::vector<Case> cases = {
      {"scheme = \"fp8-tensor\"", {DType::kFloat8E4M3FN, DType::kFloat32}},
      {"scheme = \"fp8-channel\"", {DType::kFloat8E4M3FN, DType::kFloat32}},
      {"scheme = \"fp8-block\", dialect = \"modelopt\"", {DType::kFloat8E4M3FN, DType::kFloat32}},
      {"scheme = \"fp8-block\", dialect = \"transformers\"",
       {DType::kFloat8E4M3FN, DType::kFloat32}},
      {"scheme = \"mxfp8\"", {DType::kFloat8E4M3FN, DType::kUInt8}},
      {"scheme = \"mxfp4\"", {DType::kUInt8, DType::kUInt8}},
      {"scheme = \"nvfp4\"", {DType::kUInt8, DType::kFloat8E4M3FN, DType::kFloat32}},
      {"scheme = \"nvfp4\", dialect = \"modelopt\"",
       {DType::kUInt8, DType::kFloat8E4M3FN, DType::kFloat32}},
      {"scheme = \"int8\", dialect = \"modelopt\"", {DType::kInt8, DType::kFloat32}},
      {"scheme = \"int4\", dialect = \"modelopt\"", {DType::kUInt8, DType::kFloat32}},
      {"scheme = \"int4-asym\", group = 64",
       {DType::kInt32, DType::kFloat32, DType::kInt32, DType::kInt64}}};
  for (const Case& c : cases) {
    const auto stored = scaled_by("{ op = \"quantize\", " + c.scheme + " }", {ones, twos});
    ASSERT_EQ(stored.size(), 2 * c.stored.size()) << c.scheme;
    for (std::size_t i = 0; i < stored.size(); ++i)
      EXPECT_EQ(stored[i].dtype, c.stored[i / 2]) << c.scheme;
    const auto out =
        scaled_by("{ op = \"dequantize\", to = \"float32\", " + c.scheme + " }", stored);
    ASSERT_EQ(out.size(), 2U) << c.scheme;
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(out[i].shape, (Shape{2, 256})) << c.scheme;
      for (const float number : floats_of(out[i]))
        ASSERT_NEAR(number, i == 0 ? 1 : 2, 0.04) << c.scheme;
    }
  }
}

TEST(Scaling, empty_tensors_have_scales_of_nothing) {
  const auto whole =
      scaled_by("{ op = \"quantize\", scales = \"tensor\" }", {floats_array({0, 3}, {})});
  EXPECT_TRUE(whole[0].parts.empty());
  EXPECT_EQ(floats_of(whole[1]), std::vector<float>{1});
  const auto blocks = scaled_by("\"quantize\"", {floats_array({0, 3}, {})});
  EXPECT_EQ(blocks[1].shape, (Shape{0, 1}));
  EXPECT_TRUE(blocks[1].parts.empty());
}

TEST(Scaling, what_has_no_scale_is_named_with_its_place) {
  for (const auto& [value, word] :
       {std::pair{std::numeric_limits<float>::quiet_NaN(), "NaN"},
        std::pair{-std::numeric_limits<float>::infinity(), "infinite"}}) {
    const auto out = scaled_by("{ op = \"quantize\", block = [2, 2] }",
                               {floats_array({3, 2}, {1, 2, 3, 4, 5, value})});
    for (const Array& array : out)
      expect_error(ErrorCode::kUnsupported, std::string("memory: 'w': element [2, 1] is ") + word,
                   [&] { bytes_of(array); });
  }
  const auto out = scaled_by("{ op = \"dequantize\", scales = \"mxfp4\" }",
                             {bytes_array(DType::kUInt8, {2, 1, 16}, std::vector<int>(32, 0)),
                              bytes_array(DType::kUInt8, {2, 1}, {0, 255})});
  expect_error(ErrorCode::kUnsupported, "memory: 'w': element [1, 0] is 255",
               [&] { bytes_of(out[0]); });
}

TEST(Scaling, what_does_not_go_together_is_refused) {
  const Array numbers = bytes_array(DType::kFloat8E4M3FN, {2, 3}, std::vector<int>(6, 0));
  const Array scales = floats_array({2, 3}, std::vector<float>(6, 1));
  expect_error(ErrorCode::kShape, "takes another form: scales float32 [2, 3], expected [1, 1]",
               [&] {
                 scaled_by("\"dequantize\"", {numbers, scales});
               });
  expect_error(ErrorCode::kShape, "takes another form: scales float32 [2, 3], expected [2, 1]",
               [&] {
                 scaled_by("{ op = \"dequantize\", scales = \"rows\" }", {numbers, scales});
               });
  expect_error(ErrorCode::kShape, "equally many of each: numbers, scales; not 1 arrays in all",
               [&] { scaled_by("\"dequantize\"", {numbers}); });
  expect_error(ErrorCode::kDtype, "takes float8_e4m3fn, not float32", [&] {
    scaled_by("\"dequantize\"", {scales, scales});
  });
  expect_error(ErrorCode::kDtype, "takes floating tensors, not int64", [&] {
    scaled_by("\"quantize\"", {array_of(counted({2, 3}))});
  });
  expect_error(ErrorCode::kShape, "at least 2 dimensions, not [6]",
               [&] { scaled_by("\"quantize\"", {floats_array({6}, std::vector<float>(6))}); });
  expect_error(ErrorCode::kShape, "blocks of at least one element, not 1 x 0",
               [&] { scaled_by("{ op = \"quantize\", block = [1, 0] }", {scales}); });
  expect_error(ErrorCode::kShape, "numbers uint8 [2, 3], expected [..., groups, 16]", [&] {
    const Array bytes = bytes_array(DType::kUInt8, {2, 3}, std::vector<int>(6, 0));
    scaled_by("{ op = \"dequantize\", scales = \"mxfp4\" }", {bytes, bytes});
  });
  expect_error(ErrorCode::kDtype, "takes bfloat16, float16 and float32, not float64", [&] {
    scaled_by("{ op = \"quantize\", scheme = \"int8\" }",
              {constant_array(DType::kFloat64, {2, 2}, 1)});
  });
  expect_error(ErrorCode::kShape, "needs rows of a multiple of 32, not [2, 3]",
               [&] { scaled_by("{ op = \"quantize\", scheme = \"mxfp4\" }", {scales}); });
  // Constants have any size: what they become has 64 bits.
  const std::int64_t huge = std::int64_t{1} << 61;
  expect_error(ErrorCode::kOverflow, "too large", [&] {
    scaled_by("{ op = \"dequantize\", scales = \"tensor\", to = \"float64\" }",
              {constant_array(DType::kFloat8E4M3FN, {huge}, 0), floats_array({}, {1})});
  });
}

}  // namespace
}  // namespace fsdp::formats::map
