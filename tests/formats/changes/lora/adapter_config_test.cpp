// SPDX-License-Identifier: Apache-2.0
// tests/interop/check_lora.py compares merged weights with NumPy and peft.
#include "formats/changes/lora/adapter_config.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"

namespace fsdp::formats {
namespace {

using testing::HasSubstr;

std::string config(const std::string& more) {
  return R"({"peft_type": "LORA", "r": 8, "lora_alpha": 16)" + (more.empty() ? "" : ", " + more) +
         "}";
}

TEST(AdapterConfig, the_scale_is_alpha_over_the_rank_or_its_root) {
  EXPECT_EQ(parse_adapter_config(config("")).scale_of("q", 8), 2.0);
  EXPECT_EQ(parse_adapter_config(config(R"("use_rslora": true)")).scale_of("q", 8),
            16 / std::sqrt(8.0));
  EXPECT_FALSE(parse_adapter_config(config(R"("fan_in_fan_out": false)")).fan_in_fan_out);
  EXPECT_TRUE(parse_adapter_config(config(R"("fan_in_fan_out": true)")).fan_in_fan_out);
}

TEST(AdapterConfig, the_first_pattern_that_fits_a_module_counts) {
  const AdapterConfig read = parse_adapter_config(
      config(R"("rank_pattern": {"1.q": 4, "q": 2}, "alpha_pattern": {"layers.1.q": 1.5})"));
  EXPECT_EQ(read.rank_of("layers.1.q"), 4);
  EXPECT_EQ(read.rank_of("layers.11.q"), 2);
  EXPECT_EQ(read.rank_of("layers.1.qq"), 8);
  EXPECT_EQ(read.rank_of("q"), 2);
  EXPECT_EQ(read.scale_of("layers.1.q", 4), 1.5 / 4);
  EXPECT_EQ(read.scale_of("layers.2.q", 2), 16.0 / 2);
}

TEST(AdapterConfig, what_is_not_merged_is_named) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("use_qalora": true)", "'use_qalora' is 'true'"},
      {R"("layer_replication": [[0, 1]])", "'layer_replication'"},
      {R"("init_lora_weights": "pissa")", "pissa"},
      {R"("init_lora_weights": "unheard of")", "'init_lora_weights'"},
      {R"("unheard_of": 1)", "'unheard_of' is '1'"},
      {R"("alpha_pattern": {"(?=q)q": 2})", "'(?=q)q', a regular expression"}};
  for (const auto& [more, says] : cases) {
    try {
      parse_adapter_config(config(more));
      ADD_FAILURE() << more;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << more;
      EXPECT_THAT(error.what(), HasSubstr(says));
    }
  }  // namespace
  EXPECT_NO_THROW(parse_adapter_config(config(
      R"("use_dora": false, "layer_replication": null, "unheard_of": {}, "init_lora_weights": "gaussian", "lora_dropout": 0.1)")));
}  // namespace fsdp::formats

TEST(AdapterConfig, what_the_adapter_trains_is_read) {
  const AdapterConfig read = parse_adapter_config(config(
      R"("use_dora": true, "ensure_weight_tying": true, "task_type": "SEQ_CLS", "modules_to_save": ["score", "a.b"],)"
      R"("target_parameters": ["experts.down_proj"], "trainable_token_indices": {"wte": [3, 1]}, "rank_pattern": {"(?=x)x": 2})"));
  EXPECT_TRUE(read.dora && read.keeps_tied);
  EXPECT_EQ(read.task, "SEQ_CLS");
  EXPECT_TRUE(read.saves("score") && read.saves("x.score") && read.saves("a.b.out_proj"));
  EXPECT_FALSE(read.saves("b") || read.saves("scores") || read.saves(""));
  EXPECT_THAT(read.parameters, testing::ElementsAre("experts.down_proj"));
  ASSERT_EQ(read.tokens.size(), 1U);
  EXPECT_EQ(read.tokens[0].module, "wte");
  EXPECT_THAT(read.tokens[0].rows, testing::ElementsAre(3U, 1U));
  // A pattern that is not understood decides nothing: the matrices have the rank.
  EXPECT_EQ(read.rank_of("q"), std::nullopt);
}

TEST(AdapterConfig, the_few_words_of_a_trainer_are_read) {
  const AdapterConfig read =
      parse_lora_meta(R"({"r": 32, "lora_alpha": 16, "task_type": "CAUSAL_LM"})");
  EXPECT_EQ(read.rank_of("q"), 32);
  EXPECT_EQ(read.scale_of("q", 32), 0.5);
  EXPECT_EQ(read.task, "CAUSAL_LM");
  EXPECT_THROW(parse_lora_meta(R"({"r": 32})"), Error);
  EXPECT_THROW(parse_lora_meta(R"({"r": 0, "lora_alpha": 1})"), Error);
}

TEST(AdapterConfig, malformed_text_is_refused) {
  const std::pair<std::string, ErrorCode> cases[] = {
      {"", ErrorCode::kJson},
      {"[]", ErrorCode::kType},
      {"{}", ErrorCode::kType},
      {R"({"peft_type": "LORA"})", ErrorCode::kType},
      {R"({"peft_type": "LORA", "r": 8})", ErrorCode::kType},
      {R"({"peft_type": "IA3", "r": 8, "lora_alpha": 1})", ErrorCode::kUnsupported},
      {R"({"peft_type": "LORA", "r": 0, "lora_alpha": 1})", ErrorCode::kType},
      {R"({"peft_type": "LORA", "r": -1, "lora_alpha": 1})", ErrorCode::kType},
      {R"({"peft_type": "LORA", "r": 1.5, "lora_alpha": 1})", ErrorCode::kType},
      {R"({"peft_type": "LORA", "r": 1, "lora_alpha": "1"})", ErrorCode::kType},
      {R"({"peft_type": "LORA", "r": 1, "lora_alpha": 1e39})", ErrorCode::kType},
      {R"({"peft_type": "LORA", "r": 1, "r": 2, "lora_alpha": 1})", ErrorCode::kJson},
      {config(R"("use_rslora": 1)"), ErrorCode::kType},
      {config(R"("rank_pattern": [1])"), ErrorCode::kType},
      {config(R"("rank_pattern": {"q": 0})"), ErrorCode::kType},
      {config(R"("modules_to_save": "score")"), ErrorCode::kType},
      {config(R"("target_parameters": [1])"), ErrorCode::kType},
      {config(R"("trainable_token_indices": [-1])"), ErrorCode::kType}};
  for (const auto& [text, code] : cases) {
    try {
      parse_adapter_config(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << text << ": " << error.what();
    }
  }
}

TEST(AdapterConfig, what_is_written_is_read_again) {
  AdapterConfig config;
  config.rank = 8;
  config.alpha = 12.5;
  config.fan_in_fan_out = true;
  const std::string text = adapter_config_text(config, {{"l.0.q", "l.1.q"}, {"norm"}, true});
  const AdapterConfig read = parse_adapter_config(text);
  EXPECT_EQ(read.rank, 8);
  EXPECT_EQ(read.alpha, 12.5);
  EXPECT_TRUE(read.fan_in_fan_out);
  const Json json = parse_json(text);
  EXPECT_EQ(to_text(*json.find("target_modules")), R"(["l.0.q","l.1.q"])");
  EXPECT_EQ(to_text(*json.find("modules_to_save")), R"(["norm"])");
  EXPECT_EQ(to_text(*json.find("bias")), R"("all")");
  const Json plain = parse_json(adapter_config_text(config, {{"q"}, {}, false}));
  EXPECT_EQ(to_text(*plain.find("modules_to_save")), "null");
  EXPECT_EQ(to_text(*plain.find("bias")), R"("none")");
}

}  // namespace
}  // namespace fsdp::formats
