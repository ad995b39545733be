// SPDX-License-Identifier: Apache-2.0
// Verbs that hold a model against the class that its config.json names;
// tests/interop/check_architectures.py compares what they expect with transformers.
#include "tools/verbs/models/configured_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"
#include "formats/front/open.h"
#include "formats/state/content/content.h"
#include "tests/tools/run_cli.h"
#include "tests/tools/tiny_model.h"
#include "tools/verbs/models/export_check.h"
#include "tools/verbs/models/named_model.h"

namespace fsdp::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

class ConfiguredModelTest : public CliTest {
 protected:
  // A run: config.json in its folder, the model in a step.
  ConfiguredModelTest() {
    std::filesystem::create_directories(folder() / "run/step-1");
    write_file(path("run/config.json"), kGpt2Config);
    write_file(path("run/generation_config.json"), "{}");
    gpt2().write(step_);
  }

  static constexpr int kElements = 1016;  // of the model
  const std::string step_ = path("run/step-1/model.safetensors");
};

TEST_F(ConfiguredModelTest, export_finds_the_configuration_of_the_run_and_says_what_loads_it) {
  const CliResult result = run_cli({"export", step_, path("o")});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("compared: 16 tensors with those of GPT2LMHeadModel"));
  EXPECT_THAT(result.out,
              HasSubstr("copied: from " + path("run") + ": config.json, generation_config.json\n"));
  EXPECT_THAT(result.out,
              HasSubstr("loads with: GPT2LMHeadModel.from_pretrained('" + path("o") + "')\n"));
  EXPECT_EQ(file_bytes(path("o/config.json")), kGpt2Config);
  const CliResult none = run_cli({"export", step_, path("n"), "--config", "none", "--map", "none"});
  EXPECT_EQ(none.status, 0) << none.err;
  EXPECT_THAT(none.out, HasSubstr("compared: only layers with each other, without a --config\n"));
  EXPECT_THAT(none.out, HasSubstr("from_pretrained needs a config.json"));
  EXPECT_FALSE(std::filesystem::exists(path("n/config.json")));
}

TEST_F(ConfiguredModelTest, a_tokenizer_may_lie_in_another_folder_of_the_run) {
  std::filesystem::create_directories(folder() / "run/step-1/tokenizer");
  write_file(path("run/step-1/tokenizer/tokenizer.json"), "{}");
  const CliResult result = run_cli({"export", step_, path("o")});
  EXPECT_THAT(result.out, HasSubstr(", from " + path("run/step-1/tokenizer") + ": tokenizer.json"));
  EXPECT_TRUE(std::filesystem::exists(path("o/tokenizer.json")));
}

TEST_F(ConfiguredModelTest, what_another_program_calls_config_json_is_passed_over) {
  write_file(path("run/step-1/config.json"), R"({"port": 80})");
  EXPECT_THAT(run_cli({"export", step_, path("o")}).out,
              HasSubstr("compared: 16 tensors with those of GPT2LMHeadModel"));
  write_file(path("run/step-1/config.json"), "port = 80");
  EXPECT_THAT(run_cli({"export", step_, path("p")}).out,
              HasSubstr("compared: 16 tensors with those of GPT2LMHeadModel"));
}

TEST_F(ConfiguredModelTest, a_configuration_that_was_found_has_to_fit) {
  TinySafetensors more = gpt2();
  more.count("transformer.h.0.attn.q_norm.weight", {4});
  more.write(step_);
  const CliResult result = run_cli({"export", step_, path("o")});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr(path("run/config.json") + " names, has no "));
  EXPECT_THAT(result.err, HasSubstr("--config none"));
  EXPECT_EQ(run_cli({"export", step_, path("o"), "--config", "none"}).status, 0);
}

TEST_F(ConfiguredModelTest, averages_are_taken_where_they_are_asked_for) {
  TinySafetensors both = gpt2("net.transformer.");
  add_gpt2(both, "net_ema.transformer.");
  both.write(step_);
  const CliResult plain = run_cli({"export", step_, path("o")});
  EXPECT_EQ(plain.status, 0) << plain.err;
  EXPECT_THAT(plain.out, HasSubstr("left out: 'net_ema': averages of weights, --ema takes them\n"));
  EXPECT_EQ(run_cli({"extract", path("o"), "transformer.wte.weight[0, 0:2]"}).out, "[0.0, 1.0]\n");
  const CliResult average = run_cli({"export", step_, path("e"), "--ema"});
  EXPECT_EQ(average.status, 0) << average.err;
  EXPECT_THAT(average.out, HasSubstr("model: 'net_ema'\n"));
  const std::string first = std::to_string(kElements) + ".0";
  EXPECT_THAT(run_cli({"extract", path("e"), "transformer.wte.weight[0, 0:1]"}).out,
              HasSubstr(first));
  EXPECT_THAT(run_cli({"export", step_, path("x"), "--ema", "--model", "net"}).err,
              HasSubstr("leave one out"));
  gpt2().write(step_);
  EXPECT_THAT(run_cli({"export", step_, path("x"), "--ema"}).err, HasSubstr("error[KEY]"));
}

TEST_F(ConfiguredModelTest, resize_vocab_holds_its_tables_against_the_class) {
  const CliResult right = run_cli(
      {"resize-vocab", step_, path("o.safetensors"), "--size", "12", "--table", "**.wte.weight"});
  EXPECT_EQ(right.status, 0) << right.err;
  EXPECT_THAT(right.out, HasSubstr("compared: 16 tensors with those of GPT2LMHeadModel"));
  // Positions are no tokens.
  const CliResult wrong = run_cli(
      {"resize-vocab", step_, path("w.safetensors"), "--size", "12", "--table", "**.wpe.weight"});
  EXPECT_EQ(wrong.status, 2);
  EXPECT_THAT(wrong.err, HasSubstr("error[SHAPE]"));
  EXPECT_THAT(wrong.err, HasSubstr("the model would not be GPT2LMHeadModel"));
  EXPECT_EQ(run_cli({"resize-vocab", step_, path("w.safetensors"), "--size", "12", "--table",
                     "**.wpe.weight", "--config", "none"})
                .status,
            0);
}

TEST_F(ConfiguredModelTest, import_refuses_what_the_class_does_not_have) {
  std::filesystem::copy(path("run/config.json"), path("run/step-1/config.json"));
  const std::string folder = path("run/step-1");
  const CliResult whole = run_cli({"import", folder, path("i"), "--map", "none"});
  EXPECT_EQ(whole.status, 0) << whole.err;
  EXPECT_THAT(whole.out, HasSubstr("compared: 16 tensors with those of GPT2LMHeadModel"));
  const CliResult part =
      run_cli({"import", folder, path("p"), "--map", "none", "--exclude", "transformer.ln_f.bias"});
  EXPECT_EQ(part.status, 2);
  EXPECT_THAT(part.err, HasSubstr("it lacks 'transformer.ln_f.bias' of GPT2LMHeadModel"));
  EXPECT_EQ(run_cli({"import", folder, path("p"), "--map", "none", "--exclude",
                     "transformer.ln_f.bias", "--incomplete"})
                .status,
            0);
}

// As the published GPT-2 names its tensors.
TEST_F(ConfiguredModelTest, import_gives_names_the_front_that_the_class_has) {
  std::filesystem::copy(path("run/config.json"), path("run/step-1/config.json"));
  TinySafetensors model;
  add_gpt2(model, "");
  model.write(step_);
  const CliResult result = run_cli({"import", path("run/step-1"), path("i"), "--map", "none"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("names: with 'transformer.' in front"));
  EXPECT_THAT(run_cli({"inspect", path("i"), "-k", "transformer.wte.weight"}).out,
              HasSubstr("1 tensor"));
}

TEST_F(ConfiguredModelTest, merge_lora_compares_the_result_with_the_class) {
  std::filesystem::create_directory(folder() / "adapter");
  TinySafetensors adapter;
  adapter.count("base_model.model.transformer.h.0.mlp.c_fc.lora_A.weight", {2, 8});
  adapter.count("base_model.model.transformer.h.0.mlp.c_fc.lora_B.weight", {32, 2});
  adapter.write(path("adapter/adapter_model.safetensors"));
  write_file(path("adapter/adapter_config.json"),
             R"({"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["c_fc"]})");
  const CliResult result = run_cli({"merge-lora", step_, path("adapter"), path("m.safetensors")});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("compared: 16 tensors with those of GPT2LMHeadModel"));
  const CliResult none =
      run_cli({"merge-lora", step_, path("adapter"), path("n.safetensors"), "--config", "none"});
  EXPECT_THAT(none.out, HasSubstr("compared: nothing, without a --config"));
}

TEST_F(ConfiguredModelTest, export_check_reads_the_result_again) {
  const CliResult result = run_cli({"export", step_, path("o"), "--check", "--dtype", "bf16"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("checked: 16 tensors, "));
  EXPECT_THAT(run_cli({"export", step_, path("p")}).out, Not(HasSubstr("checked: ")));
}

// An element of the folder is changed, and a tensor's name.
TEST_F(ConfiguredModelTest, export_check_names_the_element_that_differs) {
  ASSERT_EQ(run_cli({"export", step_, path("o"), "-q"}).status, 0);
  const auto source = formats::open_checkpoint(step_, {});
  ReportExtras extras;
  ModelRequest request;
  request.map = kNoMap;
  auto companions = companions_for(kNoConfig, step_);
  const NamedModel model =
      named_model(*source, formats::content_of(*source), step_, companions, request, extras);
  CommonOptions common;
  const auto check = [&] {
    return check_export(path("o"), model, *source, model.result.content, MapChoice(), common);
  };
  EXPECT_EQ(check().tensors, 16U);
  const std::string file = path("o/model.safetensors");
  const std::string right = file_bytes(file);
  std::string wrong = right;
  // The last one of the table of tokens.
  wrong[wrong.size() - 4] ^= 1;
  write_file(file, wrong);
  try {
    check();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    EXPECT_THAT(error.what(),
                HasSubstr("'transformer.wte.weight': element 79 is not what the model has"));
  }
  wrong = right;
  wrong.replace(wrong.find("ln_f.bias"), 9, "ln_g.bias");
  write_file(file, wrong);
  EXPECT_THROW(check(), Error);
}

}  // namespace
}  // namespace fsdp::cli
