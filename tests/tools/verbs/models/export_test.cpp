// SPDX-License-Identifier: Apache-2.0
// Words and reports of export and import; tests/interop/check_export.py loads what they write with
// transformers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/json.h"
#include "tests/tools/run_cli.h"
#include "tests/tools/tiny_model.h"
#include "tests/tools/tiny_safetensors.h"

namespace fsdp::cli {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kFolder = "2.15.0/fsdp2/ckpt";

using ExportTest = CliTest;

TEST_F(ExportTest, a_model_becomes_a_folder_with_its_configuration) {
  std::filesystem::create_directory(folder() / "published");
  write_file(path("published/config.json"), R"({"model_type": "own", "dtype": "float32"})");
  write_file(path("published/tokenizer.json"), "{}");
  const CliResult result = run_cli({"export", golden_path(kFolder), path("o"), "--config",
                                    path("published"), "--dtype", "bf16"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("model: 'app.model'\n"));
  EXPECT_THAT(result.out, HasSubstr("map: none, no built-in map fits these names\n"));
  EXPECT_THAT(result.out,
              HasSubstr("compared: only layers with each other, model_type 'own' is not known\n"));
  EXPECT_THAT(result.out, HasSubstr("config.json: dtype float32 -> bfloat16\n"));
  EXPECT_THAT(result.out, HasSubstr("copied: config.json, tokenizer.json\n"));
  EXPECT_THAT(file_bytes(path("o/config.json")), HasSubstr("bfloat16"));
  EXPECT_THAT(run_cli({"inspect", path("o"), "--depth", "1"}).out, HasSubstr("23 tensors"));
  EXPECT_EQ(run_cli({"verify", path("o")}).status, 0);
  // Again, over itself: its own files are no foreign ones.
  EXPECT_EQ(run_cli({"export", golden_path(kFolder), path("o"), "--force"}).status, 0);
}

TEST_F(ExportTest, a_plan_writes_nothing) {
  const CliResult json = run_cli(
      {"export", golden_path(kFolder), path("o"), "-n", "--json", "--max-shard-size", "20KB"});
  const formats::Json root = formats::parse_json(json.out);
  EXPECT_EQ(*root.find("model")->as_string(), "app.model");
  EXPECT_TRUE(root.find("map")->is_null());
  EXPECT_TRUE(*root.find("guessed")->as_bool());
  EXPECT_GT(root.find("files")->as_array()->size(), 3U);
  EXPECT_TRUE(names().empty());
}

TEST_F(ExportTest, what_is_incomplete_is_refused) {
  const CliResult result =
      run_cli({"export", golden_path(kFolder), path("o"), "--exclude", "app.model.blocks.1.up.*"});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr("error[KEY]"));
  EXPECT_THAT(result.err, HasSubstr("'blocks.1.up.bias'"));
  EXPECT_THAT(names(), Not(Contains("o")));
  EXPECT_EQ(run_cli({"export", golden_path(kFolder), path("o"), "--exclude",
                     "app.model.blocks.1.up.*", "--incomplete"})
                .status,
            0);
}

TEST_F(ExportTest, several_maps_that_take_the_names_are_all_named) {
  TinySafetensors model;
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"})
    model.fill(name, {3, 2}, 1);
  const std::string layer = "model.layers.0.";
  for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"})
    model.fill(layer + "self_attn." + name + ".weight", {2, 2}, 1);
  for (const char* name : {"input_layernorm", "post_attention_layernorm"})
    model.fill(layer + name + ".weight", {2}, 1);
  model.fill("model.norm.weight", {2}, 1);
  model.fill(layer + "mlp.gate.weight", {3, 2}, 1);
  model.fill(layer + "mlp.experts.gate_up_proj", {3, 4, 2}, 1);
  model.fill(layer + "mlp.experts.down_proj", {3, 2, 2}, 1);
  model.write(path("m.safetensors"));
  // Modules of Mixtral and of Qwen's models with experts have the same names, files do not.
  const CliResult result =
      run_cli({"export", path("m.safetensors"), path("o"), "--config", "none"});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr("error[USAGE]: several maps take these names: "));
  EXPECT_THAT(result.err, HasSubstr("transformers-mixtral-files, transformers-moe-files"));
  EXPECT_THAT(result.err, HasSubstr("; --map chooses one"));
  EXPECT_EQ(run_cli({"export", path("m.safetensors"), path("o"), "--config", "none", "--map",
                     "transformers-mixtral-files"})
                .status,
            0);
}

TEST_F(ExportTest, a_map_of_ones_own_is_applied) {
  write_file(path("r.toml"),
             "[rename]\n\"blocks.{i:int}.{rest:**}\" = \"model.layers.{i}.{rest}\"\n\"{rest:**}\" "
             "= \"model.{rest}\"\n");
  const CliResult result =
      run_cli({"export", golden_path(kFolder), path("o"), "--map", path("r.toml")});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(run_cli({"inspect", path("o"), "-k", "model.layers.0.scale"}).out,
              HasSubstr("1 tensor"));
  // And backwards, under the key that the trainer has.
  const CliResult back = run_cli(
      {"import", path("o"), path("i"), "--map", path("r.toml"), "--under", "app.model", "-w", "3"});
  EXPECT_EQ(back.status, 0) << back.err;
  const CliResult diff = run_cli({"diff", path("i"), golden_path(kFolder), "-k", "app.model.**"});
  EXPECT_EQ(diff.status, 0) << diff.out << diff.err;
}

TEST_F(ExportTest, the_class_of_the_configuration_decides) {
  write_file(path("config.json"), kGpt2Config);
  gpt2().write(path("m.safetensors"));
  // Its names are those of nanoGPT, too: the shapes tell.
  const CliResult result =
      run_cli({"export", path("m.safetensors"), path("o"), "--config", path("config.json")});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("map: none, the names are those of GPT2LMHeadModel\n"));
  EXPECT_THAT(result.out,
              HasSubstr("compared: 16 tensors with those of GPT2LMHeadModel (transformers "));
}

TEST_F(ExportTest, a_front_of_all_names_is_taken_off_where_the_class_has_none) {
  write_file(path("config.json"), kGpt2Config);
  gpt2("base_model.model.transformer.").write(path("m.safetensors"));
  const CliResult result =
      run_cli({"export", path("m.safetensors"), path("o"), "--config", path("config.json")});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(
      result.out,
      HasSubstr("names: without 'base_model.model.' in front, as GPT2LMHeadModel has them\n"));
  EXPECT_THAT(run_cli({"inspect", path("o"), "-k", "transformer.wte.weight"}).out,
              HasSubstr("1 tensor"));
}

TEST_F(ExportTest, what_the_class_does_not_have_is_refused_by_name) {
  write_file(path("config.json"), kGpt2Config);
  TinySafetensors more = gpt2();
  more.count("transformer.h.0.attn.q_norm.weight", {4});
  more.write(path("more.safetensors"));
  const CliResult result = run_cli({"export", path("more.safetensors"), path("o"), "--config",
                                    path("config.json"), "--incomplete"});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr("GPT2LMHeadModel (transformers "));
  EXPECT_THAT(result.err, HasSubstr("has no 'transformer.h.0.attn.q_norm.weight'"));
  gpt2("transformer.", 7).write(path("long.safetensors"));
  const CliResult longer =
      run_cli({"export", path("long.safetensors"), path("o"), "--config", path("config.json")});
  EXPECT_EQ(longer.status, 2);
  EXPECT_THAT(longer.err, HasSubstr("error[SHAPE]"));
  EXPECT_THAT(longer.err, HasSubstr("'transformer.wpe.weight' [7, 8], expected [6, 8]"));
}

class QuantizedExportTest : public CliTest {
 protected:
  void SetUp() override {
    CliTest::SetUp();
    write_file(path("config.json"), R"({"model_type": "own", "dtype": "float32"})");
  }
  CliResult quantized(const std::vector<std::string>& more) {
    std::vector<std::string> words = {"export", golden_path(kFolder), path("o"), "--config",
                                      path("config.json")};
    words.insert(words.end(), more.begin(), more.end());
    return run_cli(words);
  }
};

TEST_F(QuantizedExportTest, weights_become_numbers_and_scales_and_weights_again) {
  const CliResult result = quantized({"--quantize", "int8", "--quantize-skip", "emb"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("to int8, compressed-tensors, rounded to nearest from the "
                                    "weights alone\n"));
  EXPECT_THAT(result.out, HasSubstr("assumed: every other matrix NAME.weight is that of a linear"));
  EXPECT_THAT(file_bytes(path("o/config.json")), HasSubstr("\"int-quantized\""));
  EXPECT_THAT(run_cli({"inspect", path("o"), "-k", "emb.weight*"}).out, HasSubstr("1 tensor"));
  EXPECT_THAT(run_cli({"inspect", path("o"), "-k", "blocks.0.up.weight_scale"}).out,
              HasSubstr("1 tensor"));
  const CliResult plain = run_cli({"export", path("o"), path("p"), "--dequantize"});
  EXPECT_EQ(plain.status, 0) << plain.err;
  EXPECT_THAT(plain.out, HasSubstr("of int8, a scale for each row, compressed-tensors\n"));
  EXPECT_THAT(file_bytes(path("p/config.json")), Not(HasSubstr("quantization_config")));
  EXPECT_EQ(run_cli({"export", golden_path(kFolder), path("q")}).status, 0);
  const CliResult same = run_cli({"diff", path("p"), path("q"), "--atol", "0.02"});
  EXPECT_EQ(same.status, 0) << same.out;
  EXPECT_EQ(run_cli({"diff", path("p"), path("q")}).status, 1);
}

TEST_F(QuantizedExportTest, a_dialect_has_its_own_names) {
  EXPECT_EQ(quantized({"--quantize", "fp8-tensor", "--quantize-dialect", "modelopt"}).status, 0);
  EXPECT_THAT(file_bytes(path("o/config.json")), HasSubstr("\"quant_algo\": \"FP8\""));
  const CliResult none =
      quantized({"--force", "--quantize", "int4", "--quantize-dialect", "transformers"});
  EXPECT_EQ(none.status, 2);
  EXPECT_THAT(none.err, HasSubstr("no scheme 'int4' of this dialect; there are fp8-block"));
}

TEST_F(QuantizedExportTest, the_dtype_is_that_before_numbers_are_rounded) {
  EXPECT_EQ(quantized({"--quantize", "fp8-channel", "--dtype", "bf16"}).status, 0);
  EXPECT_THAT(run_cli({"inspect", path("o"), "-k", "blocks.0.up.weight_scale"}).out,
              HasSubstr("bfloat16"));
}

TEST_F(QuantizedExportTest, what_cannot_be_quantized_is_refused) {
  struct Case {
    std::vector<std::string> words;
    std::string says;
  };
  for (const Case& c : std::vector<Case>{
           {{"--quantize", "int4"}, "int4 needs rows of a multiple of 128"},
           {{"--quantize", "int4", "--quantize-group", "64"},
            "int4 needs rows of a multiple of 64"},
           {{"--quantize", "mxfp4", "--quantize-group", "64"},
            "mxfp4 has no groups of other sizes than its format's; these have: int8-group, int4"},
           {{"--quantize", "int4", "--quantize-group", "32", "--quantize-dialect", "modelopt"},
            "the configuration of modelopt does not say the size of int4's groups"},
           {{"--quantize-group", "32"}, "are about --quantize SCHEME"},
           {{"--quantize", "int8", "--quantize-skip", "nothing"}, "'nothing' matches no module"},
           {{"--quantize", "int8", "--check"}, "--check compares bit for bit"},
           {{"--quantize-skip", "emb"}, "are about --quantize SCHEME"},
           {{"--dequantize"}, "no config.json with a quantization_config"}}) {
    const CliResult result = quantized(c.words);
    EXPECT_EQ(result.status, 2) << c.says;
    EXPECT_THAT(result.err, HasSubstr(c.says));
    EXPECT_THAT(names(), Not(Contains("o")));
  }
  // Weights [in, out].
  gpt2().write(path("m.safetensors"));
  const CliResult turned = run_cli({"export", path("m.safetensors"), path("t"), "--config",
                                    path("config.json"), "--quantize", "int8"});
  EXPECT_EQ(turned.status, 2);
  EXPECT_THAT(turned.err, HasSubstr("not a linear layer"));
}

// A network and the average of its weights in one flat file.
class TwoModelsTest : public CliTest {
 protected:
  void SetUp() override {
    TinySafetensors both;
    both.fill("net.conv.weight", {2, 2}, 1);
    both.fill("net.conv.bias", {2}, 1);
    both.fill("net_teacher.conv.weight", {2, 2}, 2);
    both.fill("net_teacher.conv.bias", {2}, 2);
    both.write(path("both.safetensors"));
  }
  void refused_and_chosen(const std::vector<std::string>& words) {
    const CliResult several = run_cli(words);
    EXPECT_EQ(several.status, 2);
    EXPECT_THAT(several.err, HasSubstr("several models beside each other, 'net', 'net_teacher'; "
                                       "--model chooses one"));
    EXPECT_THAT(names(), Not(Contains("o")));
    for (const auto& [model, number] : {std::pair("net", "1"), std::pair("net_teacher", "2")}) {
      std::vector<std::string> chosen = words;
      chosen.insert(chosen.end(), {"--model", model, "--force"});
      const CliResult result = run_cli(chosen);
      EXPECT_EQ(result.status, 0) << result.err;
      EXPECT_THAT(run_cli({"inspect", path("o")}).out, HasSubstr("2 tensors, 6 elements"));
      EXPECT_THAT(run_cli({"extract", path("o"), "conv.bias"}).out,
                  HasSubstr(std::string("[") + number));
    }
  }
};

TEST_F(TwoModelsTest, export_wants_to_be_told_which) {
  refused_and_chosen({"export", path("both.safetensors"), path("o")});
}

TEST_F(TwoModelsTest, import_wants_to_be_told_which) {
  refused_and_chosen({"import", path("both.safetensors"), path("o"), "--map", "none"});
}

using ImportTest = CliTest;

TEST_F(ImportTest, a_map_is_needed_or_none) {
  run_cli({"export", golden_path(kFolder), path("o"), "-q"});
  const CliResult result = run_cli({"import", path("o"), path("i")});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr("--map is needed"));
  EXPECT_THAT(run_cli({"import", path("o"), path("i"), "--map", "none", "--under", "a..b"}).err,
              HasSubstr("is not a key"));
  const CliResult json = run_cli(
      {"import", path("o"), path("i"), "--map", "none", "--under", "model", "-w", "2", "--json"});
  EXPECT_EQ(*formats::parse_json(json.out).find("under")->as_string(), "model");
  EXPECT_EQ(*formats::parse_json(json.out).find("format")->as_string(), "dcp");
  EXPECT_THAT(run_cli({"inspect", path("i"), "-k", "model.emb.weight"}).out, HasSubstr("2 chunks"));
}

}  // namespace
}  // namespace fsdp::cli
