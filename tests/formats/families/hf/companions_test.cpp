// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hf/companions.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats::hf {
namespace {

using test::expect_error;
using test::write_file;

class CompanionsTest : public testing::Test {
 protected:
  std::filesystem::path at(const char* name) const { return folder_ / name; }
  const std::filesystem::path& folder() const { return folder_.path(); }

 private:
  test::TempDir folder_;
};

TEST_F(CompanionsTest, configuration_tokenizer_and_templates_are_found_and_nothing_else) {
  for (const char* name : {"config.json", "tokenizer.json", "merges.txt", "chat_template.jinja",
                           "model.safetensors", "modeling_llama.py", "README.md", "optimizer.pt"})
    write_file(at(name), "{}");
  const Companions found = open_companions(folder());
  std::vector<std::string> names;
  for (const Companion& one : found.files) names.push_back(one.name);
  EXPECT_THAT(names, testing::ElementsAre("chat_template.jinja", "config.json", "merges.txt",
                                          "tokenizer.json"));
  EXPECT_TRUE(found.config);
}

TEST_F(CompanionsTest, links_stay_in_the_folder_or_lead_to_blobs_of_the_hubs_cache) {
  write_file(at("secret"), "s");
  std::filesystem::create_directories(at("m/snapshots/1"));
  std::filesystem::create_directories(at("m/blobs"));
  const std::filesystem::path snapshot = at("m/snapshots/1");
  write_file(at("m/blobs/abc"), "{}");
  std::filesystem::create_symlink("../../blobs/abc", snapshot / "config.json");
  EXPECT_TRUE(open_companions(snapshot).config);
  std::filesystem::create_symlink("../../../secret", snapshot / "tokenizer.json");
  expect_error(ErrorCode::kPathEscape, "tokenizer.json", [&] { open_companions(snapshot); });
}

TEST_F(CompanionsTest, a_file_is_the_configuration_alone) {
  write_file(at("my.json"), R"({"vocab_size": 3})");
  write_file(at("tokenizer.json"), "{}");
  const Companions found = open_companions(at("my.json"));
  ASSERT_EQ(found.files.size(), 1U);
  EXPECT_EQ(found.files[0].name, "config.json");
}

TEST_F(CompanionsTest, the_dtype_is_written_where_config_json_has_one) {
  write_file(at("config.json"), R"({"a": 1, "torch_dtype": "float32", "b": [2]})");
  Companions found = open_companions(folder());
  EXPECT_EQ(set_config_dtype(found, DType::kFloat32), std::nullopt);
  EXPECT_FALSE(found.files[0].text);
  EXPECT_EQ(set_config_dtype(found, DType::kBFloat16), "float32");
  EXPECT_EQ(*parse_json(*found.files[0].text).find("torch_dtype")->as_string(), "bfloat16");
  EXPECT_EQ(to_text(parse_json(*found.files[0].text)),
            R"({"a":1,"torch_dtype":"bfloat16","b":[2]})");
  write_file(at("config.json"), R"({"a": 1})");
  Companions plain = open_companions(folder());
  EXPECT_EQ(set_config_dtype(plain, DType::kBFloat16), std::nullopt);
}

TEST_F(CompanionsTest, a_configuration_forgets_that_weights_were_quantized) {
  write_file(at("config.json"),
             R"({"a": 1, "quantization_config": {"quant_method": "fp8"}, "dtype": "bfloat16"})");
  Companions found = open_companions(folder());
  EXPECT_EQ(drop_quantization(found), "fp8");
  EXPECT_EQ(to_text(parse_json(*found.files[0].text)), R"({"a":1,"dtype":"bfloat16"})");
  EXPECT_EQ(drop_quantization(found), std::nullopt);
  // Of other methods nothing is known.
  for (const char* other : {R"({"quant_method": "gptq"})", R"({"bits": 4})", "3"}) {
    write_file(at("config.json"), std::string(R"({"quantization_config": )") + other + "}");
    Companions kept = open_companions(folder());
    EXPECT_EQ(drop_quantization(kept), std::nullopt);
    EXPECT_FALSE(kept.files[0].text);
  }
}

TEST_F(CompanionsTest, a_configuration_forgets_that_a_head_was_tied) {
  write_file(at("config.json"), R"({"tie_word_embeddings": true, "a": 1})");
  Companions found = open_companions(folder());
  EXPECT_TRUE(untie(found));
  EXPECT_EQ(to_text(parse_json(*found.files[0].text)), R"({"tie_word_embeddings":false,"a":1})");
  EXPECT_FALSE(untie(found));
  write_file(at("config.json"), R"({"a": 1})");
  Companions plain = open_companions(folder());
  EXPECT_FALSE(untie(plain));
  EXPECT_FALSE(plain.files[0].text);
}

TEST_F(CompanionsTest, what_is_no_configuration_is_refused) {
  expect_error(ErrorCode::kNotFound, "config.json", [&] { open_companions(folder()); });
  expect_error(ErrorCode::kNotFound, "nowhere", [&] { open_companions(at("nowhere")); });
  write_file(at("config.json"), "[1]");
  expect_error(ErrorCode::kJson, "is not an object", [&] { open_companions(folder()); });
  write_file(at("config.json"), "{");
  expect_error(ErrorCode::kJson, "config.json", [&] { open_companions(folder()); });
  std::filesystem::resize_file(at("config.json"), (16U << 20U) + 1);
  expect_error(ErrorCode::kLimitSize, "at most", [&] { open_companions(folder()); });
  std::filesystem::remove(at("config.json"));
  std::filesystem::create_directory(at("config.json"));
  expect_error(ErrorCode::kPath, "config.json", [&] { open_companions(folder()); });
}

}  // namespace
}  // namespace fsdp::formats::hf
