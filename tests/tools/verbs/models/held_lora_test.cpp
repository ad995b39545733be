// SPDX-License-Identifier: Apache-2.0
// Checkpoints that hold an adapter beside its base, through export; tests/interop/lora_search.py
// loads what it writes with transformers.
#include "tools/verbs/models/held_lora.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/json.h"
#include "tests/tools/run_cli.h"
#include "tests/tools/tiny_safetensors.h"

namespace fsdp::cli {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kConfig =
    R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 6, "vocab_size": 10})";
constexpr const char* kModule = "transformer.h.0.attn.c_attn.";

// GPT2LMHeadModel of those sizes, all ones.  `front`: of all names; `wrapper`: between the module
// that has an adapter and its weight.
TinySafetensors ones(const std::string& front, const std::string& wrapper) {
  const std::vector<std::pair<std::string, std::vector<std::int64_t>>> tensors = {
      {"transformer.wte.weight", {10, 8}},
      {"transformer.wpe.weight", {6, 8}},
      {"transformer.h.0.ln_1.weight", {8}},
      {"transformer.h.0.ln_1.bias", {8}},
      {"transformer.h.0.ln_2.weight", {8}},
      {"transformer.h.0.ln_2.bias", {8}},
      {kModule + wrapper + "weight", {8, 24}},
      {kModule + wrapper + "bias", {24}},
      {"transformer.h.0.attn.c_proj.weight", {8, 8}},
      {"transformer.h.0.attn.c_proj.bias", {8}},
      {"transformer.h.0.mlp.c_fc.weight", {8, 32}},
      {"transformer.h.0.mlp.c_fc.bias", {32}},
      {"transformer.h.0.mlp.c_proj.weight", {32, 8}},
      {"transformer.h.0.mlp.c_proj.bias", {8}},
      {"transformer.ln_f.weight", {8}},
      {"transformer.ln_f.bias", {8}}};
  TinySafetensors model;
  for (const auto& [name, shape] : tensors) model.fill(front + name, shape, 1);
  return model;
}

void add_adapter(TinySafetensors& model, const std::string& front, const std::string& a,
                 const std::string& b) {
  model.fill(front + kModule + a + ".weight", {1, 8}, 1);
  model.fill(front + kModule + b + ".weight", {24, 1}, 1);
}

class HeldLoraTest : public CliTest {
 protected:
  static constexpr const char* kFront = "base_model.model.";

  void SetUp() override {
    std::filesystem::create_directory(folder() / "step");
    write_file(path("config.json"), kConfig);
    TinySafetensors held = ones(kFront, "base_layer.");
    add_adapter(held, kFront, "lora_A.default", "lora_B.default");
    held.write(path("step/held.safetensors"));
  }
  CliResult exported(const std::string& from) {
    return run_cli({"export", path(from), path("o"), "--config", path("config.json")});
  }
};

TEST_F(HeldLoraTest, export_merges_it_with_the_settings_beside_it) {
  ones("", "").write(path("base.safetensors"));
  write_file(path("step/adapter_config.json"),
             R"({"peft_type": "LORA", "r": 1, "lora_alpha": 2, "fan_in_fan_out": true})");
  const CliResult result = exported("step/held.safetensors");
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("merged: the adapter that it holds, 1 weight with 1 update, "));
  EXPECT_THAT(result.out, HasSubstr("compared: 16 tensors with those of GPT2LMHeadModel"));
  // 1 + 2 * 1 * 1 in one tensor.
  const CliResult diff = run_cli({"diff", path("base.safetensors"), path("o"), "--json"});
  const formats::Json root = formats::parse_json(diff.out);
  ASSERT_EQ(root.find("differences")->as_array()->size(), 1U) << diff.out;
  const formats::Json& changed = root.find("differences")->as_array()->front();
  EXPECT_EQ(*changed.find("key")->as_string(), std::string(kModule) + "weight");
  EXPECT_EQ(std::get<double>(changed.find("max_abs")->storage()), 2.0);
  const CliResult json = run_cli({"export", path("step/held.safetensors"), path("p"), "--config",
                                  path("config.json"), "--json"});
  ASSERT_EQ(json.status, 0) << json.err;
  EXPECT_EQ(*formats::parse_json(json.out).find("merged")->as_int(), 1);
}

TEST_F(HeldLoraTest, verify_judges_the_model_as_export_writes_it) {
  const std::vector<std::string> words = {"verify", path("step/held.safetensors"), "--config",
                                          path("config.json")};
  const CliResult unknown = run_cli(words);
  EXPECT_EQ(unknown.status, 1);
  EXPECT_THAT(unknown.out, HasSubstr("holds a LoRA adapter beside its base"));
  write_file(path("step/adapter_config.json"),
             R"({"peft_type": "LORA", "r": 1, "lora_alpha": 2, "fan_in_fan_out": true})");
  const CliResult sound = run_cli(words);
  EXPECT_EQ(sound.status, 0) << sound.out << sound.err;
  EXPECT_THAT(sound.out, HasSubstr("merged: the adapter that it holds, 1 weight with 1 update, "));
  EXPECT_THAT(sound.out, HasSubstr("compared: 16 tensors with those of GPT2LMHeadModel"));
}

TEST_F(HeldLoraTest, without_settings_or_base_the_error_ends_with_the_next_command) {
  const CliResult unknown = exported("step/held.safetensors");
  EXPECT_EQ(unknown.status, 2);
  EXPECT_THAT(unknown.err, HasSubstr("error[NOT_FOUND]"));
  EXPECT_THAT(unknown.err, HasSubstr("fsdp-ckpt merge-lora " + path("step/held.safetensors") +
                                     " OUT --adapter-config FILE merges it (or --alpha A, "));
  TinySafetensors alone;
  add_adapter(alone, kFront, "lora_A.default", "lora_B.default");
  alone.write(path("alone.safetensors"));
  EXPECT_THAT(exported("alone.safetensors").err,
              HasSubstr("holds only an adapter, without its base; fsdp-ckpt merge-lora BASE " +
                        path("alone.safetensors") + " OUT"));
  EXPECT_THAT(run_cli({"merge-lora", path("alone.safetensors"), path("m.pt"), "--alpha", "1"}).err,
              HasSubstr("fsdp-ckpt merge-lora BASE " + path("alone.safetensors") + " OUT"));
  EXPECT_THAT(names(), Not(Contains("o")));
}

// torchtune's LoRALinear: B @ A, by alpha and the rank.  Megatron-Bridge's AdapterWrapper: the
// same, and the names of what it wraps stay, or have "to_wrap" where FSDP makes them.
TEST_F(HeldLoraTest, names_of_torchtune_and_of_megatron_bridge_are_understood) {
  ones("", "").write(path("base.safetensors"));
  const auto merged = [&](const std::string& wrapper, const std::string& a, const std::string& b) {
    TinySafetensors model = ones("", wrapper);
    // Of a module whose weight is [out, in], as theirs are.
    model.fill("transformer.h.0.attn.c_proj." + a + ".weight", {1, 8}, 1);
    model.fill("transformer.h.0.attn.c_proj." + b + ".weight", {8, 1}, 1);
    model.write(path("held.safetensors"));
    const CliResult result = run_cli({"merge-lora", path("held.safetensors"), path("m.safetensors"),
                                      "--alpha", "3", "--config", "none", "--force"});
    EXPECT_EQ(result.status, 0) << result.err;
    const CliResult diff =
        run_cli({"diff", path("base.safetensors"), path("m.safetensors"), "--json"});
    const formats::Json root = formats::parse_json(diff.out);
    ASSERT_EQ(root.find("differences")->as_array()->size(), 1U) << diff.out;
    const formats::Json& changed = root.find("differences")->as_array()->front();
    EXPECT_EQ(*changed.find("key")->as_string(), "transformer.h.0.attn.c_proj.weight");
    EXPECT_EQ(std::get<double>(changed.find("max_abs")->storage()), 3.0);
  };
  merged("", "lora_a", "lora_b");
  merged("", "adapter.linear_in", "adapter.linear_out");
  merged("to_wrap.", "adapter.linear_in", "adapter.linear_out");
}

TEST_F(HeldLoraTest, names_of_other_adapters_are_not_written) {
  TinySafetensors other = ones("", "");
  add_adapter(other, "", "adapter.adapter_q.linear_in", "adapter.adapter_q.linear_out");
  other.write(path("other.safetensors"));
  const CliResult refused = run_cli(
      {"export", path("other.safetensors"), path("o"), "--config", "none", "--map", "none"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err,
              HasSubstr("c_attn.adapter.adapter_q.linear_in.weight' is an adapter's name"));
  EXPECT_THAT(names(), Not(Contains("o")));
}

}  // namespace
}  // namespace fsdp::cli
