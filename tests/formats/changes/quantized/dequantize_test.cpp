// SPDX-License-Identifier: Apache-2.0
// tests/interop/check_quantized.py compares weights with those of the packages that quantize them.
#include "formats/changes/quantized/dequantize.h"

#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/changes/arrays/array_source.h"
#include "formats/changes/arrays/computed.h"
#include "formats/front/open.h"
#include "formats/state/content/content.h"
#include "formats/state/content/placed_leaves.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats::quantized {
namespace {

using test::expect_error;
using Floats = std::vector<float>;

struct Tensor {
  std::string dtype;  // safetensors' name
  std::string shape;  // "[2, 3]"
  std::string bytes;
};

std::string floats(const Floats& numbers) {
  std::string out(numbers.size() * sizeof(float), '\0');
  std::memcpy(out.data(), numbers.data(), out.size());
  return out;
}

class DequantizedModelTest : public testing::Test {
 protected:
  // Dequantizes a model of these tensors to float32.
  Floats weight(const std::string& config, const std::map<std::string, Tensor>& tensors,
                const std::string& name = "a.weight") {
    const DequantizedModel model = made(config, tensors);
    for (const auto& [key, value] : members_of(model.content)) {
      if (*key.as_string() != name) continue;
      arrays::ArraySource source(*model.checkpoint);
      const arrays::Array array = source.array(*tensor_number(value));
      Floats out(numel_of(array));
      arrays::ArrayReader(array).read_as(DType::kFloat32, 0,
                                         std::as_writable_bytes(std::span(out)));
      return out;
    }
    ADD_FAILURE() << "no " << name;
    return {};
  }

  DequantizedModel made(const std::string& config, const std::map<std::string, Tensor>& tensors) {
    Settings settings = read_settings(parse_json(config), "config.json");
    settings.texts = texts_;
    std::string header = "{";
    std::string data;
    for (const auto& [name, tensor] : tensors) {
      header += (data.empty() && header == "{" ? "" : ",");
      header += "\"" + name + "\":{\"dtype\":\"" + tensor.dtype + "\",\"shape\":" + tensor.shape +
                ",\"data_offsets\":[" + std::to_string(data.size()) + "," +
                std::to_string(data.size() + tensor.bytes.size()) + "]}";
      data += tensor.bytes;
    }
    header += "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const std::string path = folder_.path() / "model.safetensors";
    std::uint64_t size = header.size();
    std::string front(sizeof size, '\0');
    std::memcpy(front.data(), &size, sizeof size);
    std::ofstream(path, std::ios::binary) << front << header << data;
    source_ = open_checkpoint(path);
    return dequantized_model(*source_, content_of(*source_), settings, DType::kFloat32);
  }

  // Sets the metadata of a torchao checkpoint with one weight of bfloat16.
  void describe(const std::string& type, std::string data, const std::string& parts) {
    data += std::string(", \"") + (type == "MXTensor" ? "orig_" : "") +
            R"(dtype": {"_type": "torch.dtype", "_data": "bfloat16"})";
    texts_ = {{"format", "pt"},
              {"tensor_names", "[\"a.weight\"]"},
              {"a.weight", "{\"_type\": \"" + type + "\", \"_data\": {" + data +
                               "}, \"_tensor_data_names\": [" + parts + "]}"}};
  }

  test::TempDir folder_;
  std::unique_ptr<const Checkpoint> source_;
  Texts texts_;
};

const std::string kFp8 =
    R"({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights":
        {"num_bits": 8, "type": "float", "strategy": "channel"}}}})";
const std::string kInt4 =
    R"({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights":
        {"num_bits": 4, "strategy": "group", "group_size": 4}}}})";
// float8_e4m3fn: 0x38 is 1, 0x40 is 2, 0xB8 is -1, 0x30 is 0.5.
const Tensor kNumbers{"F8_E4M3", "[2, 2]", "\x38\x40\xB8\x30"};

TEST_F(DequantizedModelTest, names_lead_to_the_tensors_of_a_weight) {
  const std::map<std::string, Tensor> tensors = {
      {"a.weight", kNumbers},
      {"a.weight_scale", {"F32", "[2, 1]", floats({10, 3})}},
      {"a.input_scale", {"F32", "[1]", floats({7})}},
      {"b.weight", {"F32", "[2]", floats({5, 6})}}};
  EXPECT_EQ(weight(kFp8, tensors), (Floats{10, 20, -3, 1.5}));
  EXPECT_EQ(weight(kFp8, tensors, "b.weight"), (Floats{5, 6}));
  const DequantizedModel model = made(kFp8, tensors);
  EXPECT_EQ(model.left_out, std::vector<std::string>{"a.input_scale"});
  EXPECT_EQ(members_of(model.content).size(), 2U);
  ASSERT_EQ(model.weights.size(), 1U);
  EXPECT_EQ(model.weights[0].second, 1U);
}

TEST_F(DequantizedModelTest, a_packed_weight_has_the_shape_that_is_beside_it) {
  const std::string eight("\x06\0\0\0\0\0\0\0", 8);
  const std::string one("\x01\0\0\0\0\0\0\0", 8);
  std::map<std::string, Tensor> tensors = {
      {"a.weight_packed", {"I32", "[1, 1]", std::string("\x10\x32\xF8\0", 4)}},
      {"a.weight_scale", {"F32", "[1, 2]", floats({1, 10})}},
      {"a.weight_shape", {"I64", "[2]", one + eight}}};
  EXPECT_EQ(weight(kInt4, tensors), (Floats{-8, -7, -6, -5, 0, 70}));
  tensors["a.weight_shape"].bytes = one + std::string("\x09\0\0\0\0\0\0\0", 8);
  expect_error(ErrorCode::kMismatch, "weight_shape [1, 9], but packed numbers [1, 1]",
               [&] { made(kInt4, tensors); });
  tensors["a.weight_shape"].bytes = one + std::string(8, '\xFF');
  expect_error(ErrorCode::kMismatch, "weight_shape [1, -1]", [&] { made(kInt4, tensors); });
  tensors.erase("a.weight_shape");
  expect_error(ErrorCode::kMismatch, "no weight_shape", [&] { made(kInt4, tensors); });
}

TEST_F(DequantizedModelTest, a_second_scale_divides_or_multiplies) {
  const std::map<std::string, Tensor> ours = {
      {"a.weight_packed", {"U8", "[1, 8]", std::string("\x22\x22\x22\x22\x22\x22\x22\x72", 8)}},
      {"a.weight_scale", {"F8_E4M3", "[1, 1]", "\x40"}},
      {"a.weight_global_scale", {"F32", "[1]", floats({4})}}};
  const Floats divided = weight(
      R"({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights":
          {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}}}})",
      ours);
  EXPECT_EQ(divided[0], 0.5F);
  EXPECT_EQ(divided[15], 3);
  const std::map<std::string, Tensor> theirs = {
      {"a.weight", ours.at("a.weight_packed")},
      {"a.weight_scale", ours.at("a.weight_scale")},
      {"a.weight_scale_2", ours.at("a.weight_global_scale")}};
  const Floats multiplied =
      weight(R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})", theirs);
  EXPECT_EQ(multiplied[0], 8);
  EXPECT_EQ(multiplied[15], 48);
}

TEST_F(DequantizedModelTest, gptq_has_zero_points_and_turned_weights) {
  const std::string config =
      R"({"quant_method": "gptq", "bits": 8, "group_size": 2, "checkpoint_format": "gptq_v2"})";
  std::string words;  // four inputs in a word for each of four outputs
  for (int output = 0; output < 4; ++output) {
    for (int input = 0; input < 4; ++input) words += static_cast<char>(10 * output + input);
  }
  std::map<std::string, Tensor> tensors = {
      {"a.qweight", {"I32", "[1, 4]", words}},
      {"a.scales", {"F32", "[2, 4]", floats({1, 1, 1, 1, 2, 2, 2, 2})}},
      {"a.qzeros", {"I32", "[2, 1]", std::string("\0\x01\0\0\0\0\0\0", 8)}},
      {"a.g_idx", {"I32", "[4]", std::string("\0\0\0\0\0\0\0\0\1\0\0\0\1\0\0\0", 16)}}};
  EXPECT_EQ(weight(config, tensors),
            (Floats{0, 1, 4, 6, 9, 10, 24, 26, 20, 21, 44, 46, 30, 31, 64, 66}));
  // The second input belongs to the second group.
  tensors["a.g_idx"].bytes[4] = 1;
  EXPECT_EQ(weight(config, tensors)[1], 2);
  tensors["a.g_idx"].bytes[4] = 2;
  expect_error(ErrorCode::kMismatch, "g_idx", [&] { made(config, tensors); });
}

TEST_F(DequantizedModelTest, factors_of_inputs_become_part_of_the_weight) {
  EXPECT_EQ(weight(R"({"quant_method": "modelopt", "quant_algo": "FP8"})",
                   {{"a.weight", kNumbers},
                    {"a.weight_scale", {"F32", "[]", floats({2})}},
                    {"a.pre_quant_scale", {"F32", "[2]", floats({1, 10})}}}),
            (Floats{2, 40, -2, 10}));
}

// get_4bit_type("fp4") of bitsandbytes.
const Floats kFp4 = {0, 0.0625F / 12,  8.0F / 12,  1,  4.0F / 12,  0.5F,  2.0F / 12,  0.25F,
                     0, -0.0625F / 12, -8.0F / 12, -1, -4.0F / 12, -0.5F, -2.0F / 12, -0.25F};
const std::string kBitsandbytes = R"({"quant_method": "bitsandbytes", "load_in_4bit": true})";

std::map<std::string, Tensor> of_fp4(const std::string& state) {
  return {{"a.weight", {"U8", "[2, 1]", std::string("\x35\x70", 2)}},
          {"a.weight.absmax", {"F32", "[1]", floats({8})}},
          {"a.weight.quant_map", {"F32", "[16]", floats(kFp4)}},
          {"a.weight.quant_state.bitsandbytes__fp4",
           {"U8", "[" + std::to_string(state.size()) + "]", state}}};
}

TEST_F(DequantizedModelTest, a_table_and_a_state_tell_the_numbers_of_bitsandbytes) {
  auto tensors = of_fp4(R"({"quant_type": "fp4", "blocksize": 64, "shape": [1, 3],
                            "dtype": "float32"})");
  EXPECT_EQ(weight(kBitsandbytes, tensors), (Floats{8, 4, 2}));
  Floats other = kFp4;
  other[2] = 0.6666667F;  // rounded another way: the numbers are bitsandbytes' own
  tensors["a.weight.quant_map"].bytes = floats(other);
  tensors["a.weight"].bytes[0] = '\x25';
  EXPECT_EQ(weight(kBitsandbytes, tensors)[0], 8 * kFp4[2]);
  other[9] = 0.1F;
  tensors["a.weight.quant_map"].bytes = floats(other);
  expect_error(ErrorCode::kMismatch, "quant_map has 0.1 at 9, but fp4 is -0.00520833 there",
               [&] { made(kBitsandbytes, tensors); });
}

TEST_F(DequantizedModelTest, a_state_that_bitsandbytes_refuses_is_refused) {
  const std::vector<std::pair<std::string, std::string>> states = {
      {R"({"quant_type": "nf4", "blocksize": 64, "shape": [3], "dtype": "float32"})",
       "quant_map has 0 at 0, but nf4 is -1 there"},
      {R"({"quant_type": "int4", "blocksize": 64, "shape": [3], "dtype": "float32"})",
       "quant_type of quant_state is 'int4'"},
      {R"({"quant_type": "fp4", "blocksize": 48, "shape": [3], "dtype": "float32"})",
       "blocksize of quant_state is 48"},
      {R"({"quant_type": "fp4", "blocksize": 64, "shape": [3], "dtype": "float64"})",
       "dtype of quant_state is 'float64'"},
      {R"({"quant_type": "fp4", "blocksize": 64, "shape": [3], "dtype": "float32", "x": 1})",
       "quant_state has a member 'x'"},
      {R"({"quant_type": "fp4", "blocksize": 64, "shape": [3], "dtype": "float32",
           "nested_blocksize": 256})",
       "quant_state has no nested_blocksize, nested_offset and nested_dtype"},
      {R"({"quant_type": "fp4", "blocksize": 64, "shape": [], "dtype": "float32"})",
       "expected JSON with blocksize and shape"},
      {"[]", "expected JSON with blocksize and shape"}};
  for (const auto& [state, message] : states) {
    expect_error(ErrorCode::kMismatch, message.c_str(),
                 [&] { made(kBitsandbytes, of_fp4(state)); });
  }
}

TEST_F(DequantizedModelTest, what_the_configuration_does_not_explain_is_refused) {
  std::map<std::string, Tensor> tensors = {
      {"a.weight", kNumbers}, {"a.weight_scale", {"F32", "[3, 1]", floats({10, 3, 1})}}};
  expect_error(ErrorCode::kMismatch, "scales float32 [3, 1], expected [2, 1]",
               [&] { made(kFp8, tensors); });
  expect_error(ErrorCode::kMismatch, "numbers float8_e4m3fn [2, 2], expected int4",
               [&] { made(kInt4, tensors); });
  tensors["a.weight_scale"] = {"I32", "[2, 1]", std::string(8, '\0')};
  expect_error(ErrorCode::kMismatch, "floating numbers", [&] { made(kFp8, tensors); });
  tensors.erase("a.weight_scale");
  expect_error(ErrorCode::kNotFound, "'a.weight' is float8_e4m3fn [2, 2] and has no scales",
               [&] { made(kFp8, tensors); });
  tensors = {{"a.weight", {"F32", "[1]", floats({1})}}};
  expect_error(ErrorCode::kNotFound, "no tensors of quantized weights",
               [&] { made(kFp8, tensors); });
  tensors["b.weight_scale"] = {"F32", "[1]", floats({1})};
  expect_error(ErrorCode::kNotFound, "'b.weight_scale' has no 'b.weight_packed' beside it",
               [&] { made(kFp8, tensors); });
}

const std::string kTorchao = R"({"quant_method": "torchao"})";
const Tensor kInt8{"I8", "[2, 2]", std::string("\x01\x02\xFF\x00", 4)};

TEST_F(DequantizedModelTest, metadata_says_what_torchao_stores) {
  const std::map<std::string, Tensor> tensors = {
      {"a._weight_qdata", kInt8},
      {"a._weight_scale", {"F32", "[2, 1]", floats({10, 3})}},
      {"a._weight_zero_point", {"I8", "[2, 1]", std::string("\0\x01", 2)}},
      {"a._weight_act_quant_scale", {"F32", "[1]", floats({7})}},
      {"b.weight", {"F32", "[1]", floats({5})}}};
  describe("Int8Tensor", R"("block_size": [1, 2])",
           R"("qdata", "scale", "zero_point", "act_quant_scale")");
  EXPECT_EQ(weight(kTorchao, tensors), (Floats{10, 20, -6, -3}));
  EXPECT_EQ(weight(kTorchao, tensors, "b.weight"), (Floats{5}));
  EXPECT_EQ(made(kTorchao, tensors).left_out,
            std::vector<std::string>{"a._weight_act_quant_scale"});
  describe("Int8Tensor", R"("block_size": [2, 2])",
           R"("qdata", "scale", "zero_point", "act_quant_scale")");
  expect_error(ErrorCode::kMismatch,
               "not as the metadata says: int8, a scale for the tensor: scales float32 [2, 1]",
               [&] { made(kTorchao, tensors); });
}

TEST_F(DequantizedModelTest, scales_in_tiles_are_put_in_rows) {
  // 33 rows of 32 numbers: rows 0 and 1 begin lines of a tile, row 32 stands behind row 0.
  std::string scales(512, '\x7F');
  scales[16] = '\x80';
  scales[4] = '\x81';
  const std::map<std::string, Tensor> tensors = {
      {"a._weight_qdata", {"F8_E4M3", "[33, 32]", std::string(33 * 32, '\x38')}},
      {"a._weight_scale", {"F8_E8M0", "[32, 16]", scales}}};
  describe("MXTensor",
           R"("elem_dtype": {"_type": "torch.dtype", "_data": "float8_e4m3fn"}, "block_size": 32,
              "is_swizzled_scales": true, "kernel_preference": null, "act_quant_kwargs": null)",
           R"("qdata", "scale")");
  const Floats numbers = weight(kTorchao, tensors);
  ASSERT_EQ(numbers.size(), 33U * 32U);
  for (std::size_t i = 0; i < numbers.size(); ++i)
    ASSERT_EQ(numbers[i], i / 32 == 1 ? 2 : i / 32 == 32 ? 4 : 1) << i;
}

TEST_F(DequantizedModelTest, scales_of_float8_are_spread_as_torchao_spreads_them) {
  // A scale for each row of a square, which blocks of a column would also have.
  const std::map<std::string, Tensor> tensors = {
      {"a._weight_qdata", kNumbers}, {"a._weight_scale", {"F32", "[2, 1]", floats({10, 3})}}};
  const std::string parts = R"("qdata", "scale")";
  describe("Float8Tensor", R"("block_size": [1, 2])", parts);
  EXPECT_EQ(weight(kTorchao, tensors), (Floats{10, 20, -3, 1.5}));
  describe("Float8Tensor", R"("block_size": [2, 1])", parts);
  expect_error(ErrorCode::kMismatch, "scales float32 [2, 1], expected [1, 2]",
               [&] { made(kTorchao, tensors); });
}

TEST_F(DequantizedModelTest, what_metadata_cannot_explain_is_refused) {
  std::map<std::string, Tensor> tensors = {{"a._weight_qdata", kInt8},
                                           {"a._weight_scale", {"F32", "[2, 1]", floats({10, 3})}}};
  expect_error(ErrorCode::kNotFound, "no metadata of torchao", [&] { made(kTorchao, tensors); });
  const std::string parts = R"("qdata", "scale")";
  describe("Int8Tensor", R"("block_size": [1, 3])", parts);
  expect_error(ErrorCode::kMismatch, "[1, 3], which does not divide a tensor of [2, 2]",
               [&] { made(kTorchao, tensors); });
  describe("Int4TilePackedTo4dTensor", R"("block_size": [1, 2], "shape": [2, 2])", parts);
  expect_error(ErrorCode::kUnsupported,
               "'Int4TilePackedTo4dTensor', which torchao itself does not dequantize",
               [&] { made(kTorchao, tensors); });
  describe("Int8Tensor", R"("block_size": [1, 2])", R"("qdata", "scale", "act_pre_scale")");
  expect_error(ErrorCode::kUnsupported, "has a tensor 'act_pre_scale', which is not read",
               [&] { made(kTorchao, tensors); });
  describe("Int8Tensor", R"("block_size": [1, 2])", R"("qdata", "scale", "zero_point")");
  expect_error(ErrorCode::kNotFound, "names 'a._weight_zero_point'",
               [&] { made(kTorchao, tensors); });
  describe("Int8Tensor", R"("block_size": "all")", parts);
  expect_error(ErrorCode::kJson, "block_size is a string, expected a list of sizes",
               [&] { made(kTorchao, tensors); });
  describe("Int8Tensor", R"("block_size": [1, 2])", R"("qdata", "scale", "scale")");
  expect_error(ErrorCode::kMismatch, "_tensor_data_names has 'scale' twice",
               [&] { made(kTorchao, tensors); });
  describe("Int8Tensor", R"("block_size": [1, 2], "other": 1)", parts);
  expect_error(ErrorCode::kUnsupported, "metadata has a member 'other'",
               [&] { made(kTorchao, tensors); });
  describe("IntxUnpackedToInt8Tensor", R"("block_size": [1, 2])", parts);
  expect_error(ErrorCode::kMismatch, "a IntxUnpackedToInt8Tensor has a tensor zero_point",
               [&] { made(kTorchao, tensors); });
  describe("Int8Tensor", R"("block_size": [1, 2])", parts);
  tensors["a._weight_other"] = {"F32", "[1]", floats({1})};
  expect_error(ErrorCode::kUnsupported, "'a._weight_other' is named like a part of a weight whose",
               [&] { made(kTorchao, tensors); });
  tensors.erase("a._weight_other");
  tensors["a._weight_scale"] = {"F64", "[2, 1]", std::string(16, '\0')};
  expect_error(ErrorCode::kMismatch, "scales float64 [2, 1], expected float32, float16 or bfloat16",
               [&] { made(kTorchao, tensors); });
  tensors["a._weight_scale"] = {"F32", "[2, 1]", floats({10, 3})};
  tensors["c._weight_scale"] = {"F32", "[1]", floats({1})};
  expect_error(ErrorCode::kUnsupported, "'c._weight_scale' is named like a part of a weight",
               [&] { made(kTorchao, tensors); });
}

}  // namespace
}  // namespace fsdp::formats::quantized
