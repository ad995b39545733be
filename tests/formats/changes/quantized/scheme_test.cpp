// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/quantized/scheme.h"

#include <string>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fsdp::formats::quantized {
namespace {

using test::expect_error;

Settings read(const std::string& text) {
  return read_settings(parse_json(text), "config.json");
}

std::string weights(const std::string& members) {
  return R"({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {)" +
         members + "}}}}";
}

TEST(Scheme, each_method_says_what_shares_a_scale) {
  struct Case {
    std::string config;
    std::string name;
  };
  for (const Case& c : std::vector<Case>{
           {weights(R"("num_bits": 8, "type": "float", "strategy": "tensor")"),
            "fp8, a scale for the tensor"},
           {weights(R"("num_bits": 8, "type": "int", "strategy": "channel")"),
            "int8, a scale for each row"},
           {weights(R"("num_bits": 4, "strategy": "group", "group_size": 64)"),
            "int4, a scale for each 64 of a row"},
           {weights(R"("type": "float", "strategy": "block", "block_structure": [128, 64])"),
            "fp8, a scale for each block of 128 x 64"},
           {weights(R"("num_bits": 4, "type": "float", "strategy": "group", "group_size": 32)"),
            "mxfp4, a scale for each 32 of a row"},
           {weights(
                R"("num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16)"),
            "nvfp4, a scale for each 16 of a row"},
           {R"({"quant_method": "fp8", "weight_block_size": [128, 128]})",
            "fp8, a scale for each block of 128 x 128"},
           {R"({"quant_method": "fp8", "weight_block_size": null})", "fp8, a scale for the tensor"},
           {R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})",
            "nvfp4, a scale for each 16 of a row"},
           {R"({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}})",
            "fp8, a scale for the tensor"},
           {R"({"quant_method": "gptq", "bits": 8, "group_size": -1})",
            "int8, a scale for each row"},
           {R"({"quant_method": "awq"})", "int4, a scale for each 128 of a row"},
           {R"({"quant_method": "mxfp4"})", "mxfp4, a scale for each 32 of a row"}}) {
    const Settings settings = read(c.config);
    ASSERT_EQ(settings.schemes.size(), 1U) << c.config;
    EXPECT_EQ(settings.schemes[0].name, c.name) << c.config;
  }
  EXPECT_TRUE(read(R"({"quant_method": "gptq"})").schemes[0].zeros_plus_one);
  EXPECT_FALSE(read(R"({"quant_method": "gptq", "checkpoint_format": "gptq_v2"})")
                   .schemes[0]
                   .zeros_plus_one);
  EXPECT_TRUE(read(R"({"quant_method": "awq", "zero_point": false})").schemes[0].symmetric);
  EXPECT_FALSE(read(weights(R"("num_bits": 4, "symmetric": false)")).schemes[0].symmetric);
}

TEST(Scheme, layers_of_several_algorithms_give_each_scheme_once) {
  const Settings settings = read(
      R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers":
          {"a": {"quant_algo": "FP8"}, "b": {"quant_algo": "NVFP4", "group_size": 16},
           "c": {"quant_algo": "FP8"}}})");
  ASSERT_EQ(settings.schemes.size(), 2U);
  EXPECT_TRUE(settings.schemes[1].second_scale);
}

TEST(Scheme, what_is_not_known_is_named) {
  struct Case {
    ErrorCode code;
    std::string config;
    std::string says;
  };
  for (const Case& c : std::vector<Case>{
           {ErrorCode::kUnsupported, R"({"quant_method": "hqq"})", "quant_method is 'hqq', known"},
           {ErrorCode::kUnsupported, R"({})", "quant_method is ''"},
           {ErrorCode::kUnsupported, R"({"quant_method": "modelopt", "quant_algo": "X"})", "'X'"},
           {ErrorCode::kUnsupported, R"({"quant_method": "awq", "version": "gemv"})", "'gemv'"},
           {ErrorCode::kUnsupported, R"({"quant_method": "gptq", "bits": 3})", "bits is 3"},
           {ErrorCode::kUnsupported, weights(R"("num_bits": 9)"), "num_bits is 9"},
           {ErrorCode::kUnsupported, weights(R"("group_size": 0, "strategy": "group")"),
            "group_size is 0"},
           {ErrorCode::kJson, weights(R"("num_bits": "8")"), "num_bits is a string"},
           {ErrorCode::kJson, R"({"quant_method": "fp8", "weight_block_size": [128]})",
            "weight_block_size is an array, expected two sizes"},
           {ErrorCode::kUnsupported,
            R"({"quant_method": "compressed-tensors", "transform_config": {"a": 1}})",
            "transform_config"},
           {ErrorCode::kJson, R"({"quant_method": "compressed-tensors"})",
            "config_groups is null"}})
    expect_error(c.code, "config.json: quantization_config: ", [&] {
      try {
        read(c.config);
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(c.says), std::string::npos) << error.what();
        throw;
      }
    });
}

}  // namespace
}  // namespace fsdp::formats::quantized
