// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/families/checks/content_check.h"
#include "formats/families/torch/torch.h"
#include "formats/front/open.h"
#include "formats/state/content/content.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;

// Four files with 27 keys, as Accelerate's save_model wrote them; a copy to damage.
class TorchIndexTest : public testing::Test {
 protected:
  TorchIndexTest() : path_(dir_.path() / "ckpt") {
    fs::copy(test::data_path("golden/frameworks/bin_shards/ckpt"), path_);
  }

  fs::path shard(int number) const {
    return path_ / ("pytorch_model-0000" + std::to_string(number) + "-of-00004.bin");
  }
  fs::path index() const { return path_ / "pytorch_model.bin.index.json"; }

  // Every `from` in the index becomes `to`.
  void edit_index(const std::string& from, const std::string& to) {
    std::string text = test::to_text(test::read_file(index()));
    ASSERT_THAT(text, HasSubstr(from));
    for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
      text.replace(at, from.size(), to);
    test::write_file(index(), text);
  }

  std::string findings() const {
    std::string out;
    for (const Finding& finding : open_checkpoint(path_)->verify({}).findings) {
      out += std::string(severity_name(finding.severity)) + " " +
             std::string(code_name(finding.code)) + " " + finding_text(finding) + "\n";
    }
    return out;
  }

  void expect_refused(ErrorCode code, const std::string& message) const {
    const auto checkpoint = open_checkpoint(path_);
    test::expect_error(code, message,
                       [&] { check_before_copy(*checkpoint, content_of(*checkpoint), {}); });
  }

  test::TempDir dir_;
  fs::path path_;
};

TEST_F(TorchIndexTest, the_files_are_one_checkpoint) {
  for (const fs::path& path : {path_, index()}) {
    const auto checkpoint = open_checkpoint(path);
    EXPECT_EQ(checkpoint->description().format, "torch-shards");
    EXPECT_EQ(checkpoint->index().tensors.size(), 27U);
    EXPECT_EQ(checkpoint->index().files.size(), 4U);
    EXPECT_THAT(checkpoint->verify({}).findings, IsEmpty());
    check_before_copy(*checkpoint, content_of(*checkpoint), {});
    // Tied weights stay tied.
    const Value content = content_of(*checkpoint);
    EXPECT_EQ(content.find("tied.weight")->identity(), content.find("layers.3.weight")->identity());
  }
}

TEST_F(TorchIndexTest, one_file_opens_on_its_own) {
  EXPECT_EQ(open_checkpoint(shard(2))->description().format, "torch");
}

TEST_F(TorchIndexTest, a_missing_shard_is_named_with_what_was_in_it) {
  for (int number = 1; number <= 4; ++number) {
    const fs::path kept = dir_.path() / "kept.bin";
    fs::rename(shard(number), kept);
    EXPECT_THAT(findings(), HasSubstr("damage SHARD_MISSING " + shard(number).filename().native() +
                                      ": the file is missing, and no other file has '"));
    expect_refused(ErrorCode::kShardMissing, shard(number).filename());
    // The content of the other files can be inspected.
    EXPECT_GT(open_checkpoint(path_)->index().tensors.size(), 10U);
    fs::rename(kept, shard(number));
  }
}

TEST_F(TorchIndexTest, keys_that_contradict_the_map_are_named) {
  edit_index("\"layers.0.bias\": \"pytorch_model-00001",
             "\"layers.0.bias\": \"pytorch_model-00002");
  EXPECT_THAT(findings(),
              HasSubstr("damage INDEX pytorch_model-00001-of-00004.bin: 'layers.0.bias' "
                        "lies in 'pytorch_model-00001-of-00004.bin', but the map says "
                        "'pytorch_model-00002-of-00004.bin'"));
  expect_refused(ErrorCode::kIndex, "'layers.0.bias'");
}

TEST_F(TorchIndexTest, a_key_in_no_file_and_one_that_is_not_in_the_map_are_named) {
  edit_index("\"layers.0.bias\"", "\"layers.0.bios\"");
  const std::string found = findings();
  EXPECT_THAT(found, HasSubstr("the map says that it holds 'layers.0.bios', which no file does"));
  EXPECT_THAT(found, HasSubstr("'layers.0.bias' lies in 'pytorch_model-00001-of-00004.bin', but is "
                               "not in the map"));
  expect_refused(ErrorCode::kIndex, "layers.0.bi");
}

TEST_F(TorchIndexTest, a_key_in_two_files_is_named) {
  fs::copy_file(shard(1), shard(2), fs::copy_options::overwrite_existing);
  EXPECT_THAT(findings(),
              HasSubstr("'layers.0.bias' is in 'pytorch_model-00001-of-00004.bin' and in "
                        "'pytorch_model-00002-of-00004.bin'"));
  expect_refused(ErrorCode::kIndex, "and in 'pytorch_model-00002");
}

TEST_F(TorchIndexTest, another_total_size_is_a_warning) {
  edit_index("\"total_size\": 3", "\"total_size\": 4");
  const std::string found = findings();
  EXPECT_THAT(found,
              testing::StartsWith("warning INDEX pytorch_model.bin.index.json: total_size is "
                                  "4"));
  EXPECT_EQ(std::count(found.begin(), found.end(), '\n'), 1);
}

TEST_F(TorchIndexTest, names_that_lead_elsewhere_are_refused) {
  const std::string name = "pytorch_model-00001-of-00004.bin";
  const std::string text = test::to_text(test::read_file(index()));
  for (const std::string& other : {"../ckpt/" + name, "/" + name, std::string("a/../../x.bin")}) {
    test::write_file(index(), text);
    edit_index(name, other);
    test::expect_error(ErrorCode::kIndex, "outside the folder", [&] { open_checkpoint(path_); });
  }
  test::write_file(index(), text);
  edit_index(name, "model.safetensors");
  test::expect_error(ErrorCode::kIndex, "is not a .bin file", [&] { open_checkpoint(path_); });
  test::write_file(index(), text);
  fs::rename(shard(1), dir_.path() / name);
  fs::create_symlink(dir_.path() / name, shard(1));
  EXPECT_THROW(open_checkpoint(path_), Error);
}

TEST_F(TorchIndexTest, a_cut_shard_says_where) {
  const auto bytes = fs::file_size(shard(3));
  for (const std::uintmax_t kept : {bytes - 1, bytes / 2, std::uintmax_t{10}, std::uintmax_t{0}}) {
    fs::resize_file(shard(3), kept);
    try {
      open_checkpoint(path_);
      ADD_FAILURE() << kept;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(shard(3).filename().native()));
    }
  }
}

TEST_F(TorchIndexTest, a_flipped_byte_is_named_with_file_and_key) {
  std::uint64_t offset = 0;
  {
    const auto checkpoint = open_checkpoint(path_);
    for (const TensorEntry& entry : checkpoint->index().tensors) {
      if (entry.key == "layers.7.weight") offset = checkpoint->chunk(entry, 0).file_offset;
    }
  }
  std::string bytes = test::to_text(test::read_file(shard(3)));
  bytes.at(offset) = static_cast<char>(bytes.at(offset) ^ 1);
  test::write_file(shard(3), bytes);
  EXPECT_THAT(findings(), testing::StartsWith("damage ZIP_CRC " + shard(3).filename().native() +
                                              ": 'layers.7.weight'"));
}

TEST_F(TorchIndexTest, several_indexes_have_to_be_told_apart) {
  fs::copy_file(index(), path_ / "other.bin.index.json");
  test::expect_error(ErrorCode::kIndex, "several index files", [&] { open_checkpoint(path_); });
  EXPECT_EQ(open_checkpoint(index())->index().tensors.size(), 27U);
}

TEST_F(TorchIndexTest, a_file_without_a_dict_is_refused) {
  fs::copy_file(test::data_path("golden/2.11.0/bare_tensor_pt/full.pt"), shard(1),
                fs::copy_options::overwrite_existing);
  test::expect_error(ErrorCode::kMetaType, "does not hold a dict", [&] { open_checkpoint(path_); });
}

TEST_F(TorchIndexTest, is_the_model_of_a_trainers_folder) {
  for (const char* name : {"optimizer.pt", "scheduler.pt", "rng_state.pth"}) {
    fs::copy_file(test::data_path("golden/frameworks/trainer_bin/ckpt") / fs::path(name),
                  path_ / name);
  }
  const auto checkpoint = open_checkpoint(path_);
  EXPECT_EQ(checkpoint->description().format, "trainer");
  const auto& tensors = checkpoint->index().tensors;
  EXPECT_EQ(std::count_if(tensors.begin(), tensors.end(),
                          [](const auto& entry) { return entry.key.starts_with("model.layers."); }),
            22);
  EXPECT_TRUE(checkpoint->findings().empty());
  fs::remove(shard(1));
  EXPECT_THAT(findings(), HasSubstr("damage SHARD_MISSING pytorch_model-00001-of-00004.bin"));
}

}  // namespace
}  // namespace fsdp::formats
