// SPDX-License-Identifier: Apache-2.0
#include "formats/families/fast_llm/metadata.h"

#include <string>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fsdp::formats::fast_llm {
namespace {

const std::string kFront =
    "config:\n  base_model:\n    a: 'text of\n\n      several: lines'\n    list:\n    - 1\n"
    "fast_llm_version: '0.4'\nformat: fast_llm\nmetadata:\n  completed_steps: 3\n"
    "  optimizer:\n    current_step: 2\n    grad_scaler:\n      type: NoopGradScaler\n"
    "  state_index:\n";
const std::string kBack = "model: gpt\nshards:\n- weights\n- exp_avgs\n";

std::string with(const std::string& entries) {
  return kFront + entries + kBack;
}

TEST(FastLlmMetadata, reads_what_safe_dump_writes) {
  const Metadata read = parse_metadata(with(
      "    a.weight/weights: model_0.safetensors\n    ? b/weights\n    : model_1_0.safetensors\n"));
  EXPECT_EQ(read.version, "0.4");
  EXPECT_EQ(read.format, "fast_llm");
  EXPECT_EQ(read.model, "gpt");
  EXPECT_EQ(read.step, 2);
  EXPECT_EQ(read.shards, (std::vector<std::string>{"weights", "exp_avgs"}));
  ASSERT_EQ(read.index.weight_map.size(), 2U);
  EXPECT_EQ(read.index.weight_map[0].tensor, "a.weight/weights");
  EXPECT_EQ(read.index.weight_map[1].tensor, "b/weights");
  EXPECT_EQ(read.index.weight_map[1].file, "model_1_0.safetensors");
}

TEST(FastLlmMetadata, every_beginning_of_it_is_refused) {
  const std::string whole = with("    a/weights: model_0.safetensors\n");
  // The last two lines list shards, which are compared with the tensors later.
  for (std::size_t size = 0; size < whole.size() - std::string("- exp_avgs\n").size(); ++size)
    test::expect_error(ErrorCode::kIndex, "line ", [&] { parse_metadata(whole.substr(0, size)); });
}

TEST(FastLlmMetadata, other_styles_are_refused) {
  for (const char* entry :
       {"    a/weights: ../model_0.safetensors\n", "    a/weights: model_x.safetensors\n",
        "    a/weights: model_0_0_0.safetensors\n", "    a/weights: &b model_0.safetensors\n",
        "    a/weights: model_0.safetensors # b\n", "    a/weights: \"model_0.safetensors\"\n",
        "    a/weights:\n", "    a/weights\n", "    : model_0.safetensors\n", "    ? a/weights\n",
        "    {a/weights: model_0.safetensors}\n", "     a/weights: model_0.safetensors\n",
        "    a: model_0.safetensors\n    a: model_0.safetensors\n", "  state_index:\n"})
    test::expect_error(ErrorCode::kIndex, "line ", [&] { parse_metadata(with(entry)); });
  test::expect_error(ErrorCode::kIndex, "'format' is there twice",
                     [&] { parse_metadata(with("format: fast_llm\n")); });
}

TEST(FastLlmMetadata, names_of_files) {
  EXPECT_TRUE(is_model_file("model_0.safetensors"));
  EXPECT_TRUE(is_model_file("model_12_3.safetensors"));
  EXPECT_TRUE(is_rank_file("rank_15.safetensors"));
  for (const char* name : {"model.safetensors", "model_.safetensors", "model_0_.safetensors",
                           "model_0", "model_-1.safetensors", "rank_0.safetensors"})
    EXPECT_FALSE(is_model_file(name)) << name;
}

}  // namespace
}  // namespace fsdp::formats::fast_llm
