// SPDX-License-Identifier: Apache-2.0
// Words and reports; tests/interop/check_lora.py compares results with NumPy and peft.
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tools/run_cli.h"
#include "tests/tools/tiny_safetensors.h"

namespace fsdp::cli {
namespace {

using testing::HasSubstr;

constexpr const char* kFolder = "2.15.0/fsdp2/ckpt";

class MergeLoraTest : public CliTest {
 protected:
  const std::string base_ = golden_path(kFolder);
  const std::string adapter_ = test::data_path("adapters/blocks").native();
};

TEST_F(MergeLoraTest, two_weights_change_and_the_rest_stays) {
  const CliResult result = run_cli({"merge-lora", base_, adapter_, path("m.pt")});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("merged 1 adapter: 2 weights with 2 updates, below 'app."));
  const CliResult diff = run_cli({"diff", base_, path("m.pt")});
  EXPECT_THAT(diff.out, HasSubstr("differ: 2 of 80 tensors"));
  // A folder of three ranks holds the same.
  EXPECT_EQ(run_cli({"merge-lora", base_, adapter_, path("m"), "--to", "dcp", "-w", "3"}).status,
            0);
  EXPECT_EQ(run_cli({"diff", path("m"), path("m.pt")}).status, 0);
}

// A model of peft in a file of its own: no base is given, and the adapter can be taken out.
TEST_F(MergeLoraTest, a_checkpoint_that_holds_base_and_adapter_is_merged_as_it_is) {
  const std::string held = path("held.safetensors");
  const std::vector<std::pair<std::string, std::string>> tensors = {
      {"base_model.model.q.base_layer.weight", "[2,2]"},
      {"base_model.model.q.lora_A.default.weight", "[1,2]"},
      {"base_model.model.q.lora_B.default.weight", "[2,1]"}};
  std::string header = "{";
  std::size_t offset = 0;
  std::vector<float> numbers = {1, 2, 3, 4, 5, 6, 7, 8};
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::size_t bytes = i == 0 ? 16 : 8;
    header += (i == 0 ? "\"" : ",\"") + tensors[i].first + R"(":{"dtype":"F32","shape":)" +
              tensors[i].second + R"(,"data_offsets":[)" + std::to_string(offset) + "," +
              std::to_string(offset + bytes) + "]}";
    offset += bytes;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size() & 0xFF);
  file[1] = static_cast<char>(header.size() >> 8U);
  file += header + std::string(reinterpret_cast<const char*>(numbers.data()), offset);
  write_file(held, file);

  EXPECT_THAT(run_cli({"merge-lora", held, path("m.safetensors")}).err,
              HasSubstr("lora_alpha is unknown"));
  const CliResult merged = run_cli({"merge-lora", held, path("m.safetensors"), "--alpha", "2"});
  EXPECT_EQ(merged.status, 0) << merged.err;
  EXPECT_THAT(merged.out, HasSubstr("1 weight with 1 update"));
  EXPECT_THAT(run_cli({"inspect", path("m.safetensors")}).out, HasSubstr("q.weight"));
  const std::string result = file_bytes(path("m.safetensors"));
  std::vector<float> sums(4);
  std::memcpy(sums.data(), result.data() + result.size() - 16, 16);
  // 1 + 2 * 7 * 5 and so on.
  EXPECT_THAT(sums, testing::ElementsAre(71, 86, 83, 100));

  write_file(path("lora_train_meta.json"),
             R"({"r": 1, "lora_alpha": 2, "task_type": "CAUSAL_LM"})");
  const CliResult taken = run_cli({"merge-lora", held, path("adapter"), "--adapter-only"});
  EXPECT_EQ(taken.status, 0) << taken.err;
  EXPECT_THAT(file_bytes(path("adapter/adapter_config.json")), HasSubstr("\"lora_alpha\": 2"));
  EXPECT_THAT(run_cli({"inspect", path("adapter/adapter_model.safetensors")}).out,
              HasSubstr("lora_A.weight"));
  EXPECT_EQ(run_cli({"merge-lora", held, base_, path("x"), "--adapter-only"}).status, 2);
  EXPECT_THAT(run_cli({"merge-lora", base_, path("none.pt")}).err, HasSubstr("holds no adapter"));
}

// Two experts of Qwen3-MoE as its files have them, all ones, and an adapter on what its code
// stacks.
class StackedExpertsTest : public CliTest {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(folder() / "base");
    std::filesystem::create_directory(folder() / "adapter");
    write_file(path("base/config.json"), R"({"model_type": "qwen3_moe"})");
    TinySafetensors base;
    const std::string layer = "model.layers.0.";
    for (const char* name : {"0.gate_proj", "0.up_proj", "1.gate_proj", "1.up_proj"})
      base.fill(layer + "mlp.experts." + name + ".weight", {2, 2}, 1);
    for (const char* name : {"0.down_proj", "1.down_proj"})
      base.fill(layer + "mlp.experts." + name + ".weight", {2, 2}, 1);
    base.fill(layer + "mlp.gate.weight", {2, 2}, 1);
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"})
      base.fill(layer + "self_attn." + name + ".weight", {2, 2}, 1);
    base.fill(layer + "input_layernorm.weight", {2}, 1);
    base.fill(layer + "post_attention_layernorm.weight", {2}, 1);
    base.fill("model.embed_tokens.weight", {3, 2}, 1);
    base.fill("model.norm.weight", {2}, 1);
    base.fill("lm_head.weight", {3, 2}, 1);
    base.write(path("base/model.safetensors"));
  }
  void write_adapter(const std::string& parameter, std::int64_t in, std::int64_t out,
                     const std::string& more) {
    TinySafetensors adapter;
    const std::string module = "base_model.model.model.layers.0.mlp.experts.";
    std::vector<float> a;
    std::vector<float> b;
    for (std::int64_t i = 0; i < 2 * in; ++i) a.push_back(static_cast<float>(1 + i));
    for (std::int64_t i = 0; i < 2 * out; ++i) b.push_back(static_cast<float>(10 + 10 * i));
    adapter.add(module + "lora_A.weight", {2, in}, a);
    adapter.add(module + "lora_B.weight", {out, 2}, b);
    adapter.write(path("adapter/adapter_model.safetensors"));
    write_file(
        path("adapter/adapter_config.json"),
        R"({"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_parameters": ["mlp.experts.)" +
            parameter + "\"]" + more + "}");
  }
  CliResult merged() {
    return run_cli({"merge-lora", path("base"), path("adapter"), path("m.safetensors"), "--force"});
  }
  std::vector<float> numbers(const std::string& name) {
    run_cli({"extract", path("m.safetensors"), name, path("n.npy"), "--force"});
    const std::string bytes = file_bytes(path("n.npy"));
    std::vector<float> found(4);
    std::memcpy(found.data(), bytes.data() + bytes.size() - 16, 16);
    return found;
  }
};

TEST_F(StackedExpertsTest, files_with_a_tensor_for_each_expert_are_merged_through_their_map) {
  write_adapter("gate_up_proj", 2, 4, R"(, "peft_version": "0.21.0")");
  const CliResult result = merged();
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("to which transformers-moe-files leads, and back"));
  // Of expert 1: A = [3, 4], and B = [20, 40, 60, 80], two of which are up's.
  EXPECT_THAT(numbers("model.layers.0.mlp.experts.1.gate_proj.weight"),
              testing::ElementsAre(61, 81, 121, 161));
  EXPECT_THAT(numbers("model.layers.0.mlp.experts.1.up_proj.weight"),
              testing::ElementsAre(181, 241, 241, 321));
  EXPECT_THAT(run_cli({"diff", path("base"), path("m.safetensors")}).out,
              HasSubstr("differ: 4 of 16 tensors"));
}

TEST_F(StackedExpertsTest, the_version_of_peft_tells_how_square_ones_are_meant) {
  // Of expert 0: A = [1, 2], B = [10, 30].
  write_adapter("down_proj", 2, 2, R"(, "peft_version": "0.21.0")");
  const CliResult straight = merged();
  EXPECT_EQ(straight.status, 0) << straight.err;
  EXPECT_THAT(straight.out, testing::Not(HasSubstr("are taken to be")));
  EXPECT_THAT(numbers("model.layers.0.mlp.experts.0.down_proj.weight"),
              testing::ElementsAre(11, 21, 31, 61));
  write_adapter("down_proj", 2, 2, R"(, "peft_version": "0.18.1")");
  const CliResult turned = merged();
  EXPECT_THAT(turned.out, testing::Not(HasSubstr("are taken to be")));
  EXPECT_THAT(numbers("model.layers.0.mlp.experts.0.down_proj.weight"),
              testing::ElementsAre(11, 31, 21, 61));
  write_adapter("down_proj", 2, 2, "");
  EXPECT_THAT(merged().out,
              HasSubstr("are taken to be [experts, in, out], as in peft before 0.19"));
}

TEST_F(StackedExpertsTest, parameters_that_no_map_leads_to_are_refused_with_the_next_command) {
  write_adapter("w13", 2, 4, "");
  const CliResult result = merged();
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr("lacks 'mlp.experts.w13', which target_parameters names"));
  EXPECT_THAT(result.err, HasSubstr("fsdp-ckpt map --reverse with your own rules"));
}

TEST_F(MergeLoraTest, what_does_not_fit_is_refused_before_a_byte_is_written) {
  const auto refused = [&](std::vector<std::string> words, const std::string& says) {
    words.insert(words.begin(), "merge-lora");
    const CliResult result = run_cli(words);
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.err, HasSubstr(says));
    EXPECT_TRUE(names().empty());
  };
  const std::string out = path("m.pt");
  refused({base_, out}, "holds no adapter");
  refused({base_, base_, out}, "holds no adapter_config.json");
  refused({base_, path("nowhere"), out}, "error[NOT_FOUND]");
  refused({golden_path("2.11.0/minimal/ckpt"), adapter_, out}, "error[MISMATCH]");
  refused({base_, adapter_, out, "-k", "app.optim.**"}, "is of another base");
  refused({base_, adapter_, path("m")}, "does not name a format");
}

TEST_F(MergeLoraTest, a_damaged_adapter_is_refused) {
  std::filesystem::copy(adapter_, path("a"));
  const std::string tensors = path("a/adapter_model.safetensors");
  write_file(tensors, file_bytes(tensors).substr(0, 1500));
  EXPECT_EQ(run_cli({"merge-lora", base_, path("a"), path("m.pt")}).status, 2);
  std::filesystem::remove(tensors);
  EXPECT_THAT(run_cli({"merge-lora", base_, path("a"), path("m.pt")}).err,
              HasSubstr("neither adapter_model.safetensors nor"));
  EXPECT_FALSE(std::filesystem::exists(path("m.pt")));
}

}  // namespace
}  // namespace fsdp::cli
