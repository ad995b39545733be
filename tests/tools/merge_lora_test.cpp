// SPDX-License-Identifier: Apache-2.0
// Words and reports; tests/interop/check_lora.py compares results with NumPy and peft.
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tools/run_cli.h"

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
              HasSubstr("nothing tells lora_alpha"));
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
  refused({base_, adapter_, path("m")}, "names no format");
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
