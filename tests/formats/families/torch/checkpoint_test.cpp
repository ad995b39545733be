// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/families/torch/torch.h"
#include "tests/support/expect_error.h"
#include "tests/support/findings.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"
#include "tests/support/torch_zip_builder.h"

namespace fsdp::formats {
namespace {

using test::integer;
using test::text;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

std::unique_ptr<StoredCheckpoint> open(const test::TempDir& folder, const std::string& bytes) {
  test::write_file(folder / "full.pt", bytes);
  return open_torch_save(folder / "full.pt");
}

TEST(TorchSave, errors_of_opening_begin_with_the_path) {
  const test::TempDir folder;
  test::TorchZip zip = test::float_tensor({2});
  zip.has_pickle = false;
  test::expect_error(ErrorCode::kRecordMissing,
                     (folder / "full.pt").string() + ": record 'archive/data.pkl' is missing",
                     [&] { open(folder, zip.bytes()); });
  zip = test::float_tensor({2});
  zip.root = integer(1) + integer(2) + "a";
  test::expect_error(ErrorCode::kType, (folder / "full.pt").string() + ": archive/data.pkl: ", [&] {
    open(folder, zip.bytes());
  });
  zip = test::float_tensor({2});
  zip.root = test::dict_of({{text(std::string(70'000, 'k')), integer(1)}});
  test::expect_error(ErrorCode::kName, (folder / "full.pt").string() + ": key 'kkk",
                     [&] { open(folder, zip.bytes()); });
}

TEST(TorchSave, a_flipped_bit_names_the_tensor_that_lies_there) {
  const test::TempDir folder;
  test::TorchZip zip;
  zip.root = test::dict_of(
      {{text("model"),
        test::dict_of({{text("w"), test::tensor_call(test::storage("0", 2), 0, {2}, {1})}})}});
  zip.storages = {{"0", "aaaabbbb"}};
  std::string bytes = zip.bytes();
  EXPECT_THAT(test::verified(*open(folder, bytes)), IsEmpty());
  bytes[bytes.find("aaaabbbb")] ^= 1;
  const auto checkpoint = open(folder, bytes);
  EXPECT_THAT(
      test::verified(*checkpoint),
      ElementsAre(AllOf(StartsWith("ZIP_CRC full.pt: 'model.w': record 'archive/data/0' at byte "),
                        HasSubstr("CRC-32 stored "))));
  EXPECT_THAT(test::verified(*checkpoint, true), IsEmpty());
}

TEST(TorchSave, keys_that_read_the_same_stay_apart) {
  const test::TempDir folder;
  test::TorchZip zip;
  zip.root =
      test::dict_of({{integer(3), integer(1)}, {text("3"), integer(2)}, {text("3#2"), integer(3)}});
  const auto checkpoint = open(folder, zip.bytes());
  std::vector<std::string> keys;
  for (const ValueEntry& value : checkpoint->index().values) keys.push_back(value.key);
  EXPECT_THAT(keys, ElementsAre("3", "3#2", "3#2#2"));
  EXPECT_EQ(checkpoint->value(checkpoint->index().values[1]).as_int(), 2);
  EXPECT_EQ(checkpoint->value(checkpoint->index().values[2]).as_int(), 3);

  // The steps that read the same are above a position in a list.
  const std::string tensor = test::tensor_call(test::storage("0", 2), 0, {2}, {1});
  zip.root =
      test::dict_of({{integer(3), test::list_of({tensor})}, {text("3"), test::list_of({tensor})}});
  zip.storages = {{"0", "aaaabbbb"}};
  const auto lists = open(folder, zip.bytes());
  ASSERT_EQ(lists->index().tensors.size(), 2U);
  EXPECT_EQ(lists->index().tensors[0].key, "3.0");
  EXPECT_EQ(lists->index().tensors[1].key, "3#2.0");
}

TEST(TorchSave, a_name_of_code_is_damage_until_it_is_allowed) {
  const test::TempDir folder;
  test::TorchZip zip;
  zip.root = test::dict_of({{text("v"), test::call(test::global("os", "system"), {text("true")})}});
  const auto checkpoint = open(folder, zip.bytes());
  EXPECT_THAT(test::verified(*checkpoint),
              ElementsAre(StartsWith("unsafe GLOBAL full.pt: global 'os.system'")));
  VerifyOptions options;
  options.allowed_globals = {"os.system"};
  EXPECT_THAT(checkpoint->verify(options).findings, IsEmpty());
}

TEST(TorchSave, bytes_without_checksums_are_counted) {  // Z16
  const auto unchecked = [](const char* path) {
    return open_torch_save(test::data_path(path))->verify({});
  };
  EXPECT_EQ(unchecked("golden/2.11.0/zip_pt/full.pt").bytes_unchecked, 0U);
  EXPECT_GT(unchecked("golden/2.11.0/zip_pt/full.pt").bytes_checked, 40U);
  for (const char* path : {"golden/2.11.0/nocrc_pt/full.pt", "golden/2.11.0/legacy_pt/full.pt"}) {
    EXPECT_EQ(unchecked(path).bytes_checked, 0U) << path;
    EXPECT_EQ(unchecked(path).bytes_unchecked, 10U * 4)
        << path;  // ten floats, which all tensors share
  }
}

TEST(TorchSave, a_tensor_alone_is_a_checkpoint) {
  const auto checkpoint = open_torch_save(test::data_path("golden/2.11.0/bare_tensor_pt/full.pt"));
  ASSERT_EQ(checkpoint->index().tensors.size(), 1U);
  EXPECT_EQ(checkpoint->index().tensors[0].key, "");
  EXPECT_TRUE(checkpoint->index().tensors[0].path.empty());
}

}  // namespace
}  // namespace fsdp::formats
