// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/families/safetensors/index.h"
#include "formats/families/safetensors/safetensors.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats::safetensors {
namespace {

namespace fs = std::filesystem;

using test::expect_error;
using testing::ElementsAre;

// A file of float32 tensors with their offsets, as each rank writes it; without offsets if
// `sharded` is false.
struct Part {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> offset;
  DType dtype = DType::kFloat32;
};
void write_part(const fs::path& path, const std::vector<Part>& parts, bool sharded = true) {
  std::vector<Tensor> tensors;
  std::vector<SavedOffsets> offsets;
  std::uint64_t bytes = 0;
  for (const Part& part : parts) {
    const std::uint64_t size = volume({part.shape, part.shape}) * item_bytes(part.dtype);
    tensors.push_back({part.name, part.dtype, part.shape, 0, size});
    offsets.push_back({part.name, part.offset});
    bytes += size;
  }
  const auto metadata =
      sharded ? sharding_metadata(offsets) : std::vector<std::pair<std::string, std::string>>();
  test::write_file(path, make_header(tensors, metadata) + std::string(bytes, 'x'));
}

std::string shard(int number) {
  return "shard-0000" + std::to_string(number) + "-model-00001-of-00001.safetensors";
}

TEST(SafetensorsCheckpoint, the_ranks_files_are_joined_by_their_offsets) {
  const test::TempDir folder;
  write_part(folder / shard(1), {{"w", {2, 3}, {0, 0}}});
  write_part(folder / shard(2), {{"w", {1, 3}, {2, 0}}, {"e", {0, 2}, {0, 0}}});
  const auto checkpoint = open_folder(folder.path());
  EXPECT_EQ(checkpoint->description().layout, "hf-sharded");
  EXPECT_EQ(checkpoint->description().ranks, 2);
  ASSERT_EQ(checkpoint->index().tensors.size(), 2U);
  EXPECT_THAT(checkpoint->index().tensors[0].shape, ElementsAre(3, 3));
  EXPECT_EQ(checkpoint->index().tensors[0].chunks.size(), 2U);
  EXPECT_TRUE(checkpoint->verify({}).findings.empty());
  EXPECT_EQ(checkpoint->verify({}).bytes_unchecked, 36U);
}

TEST(SafetensorsCheckpoint, a_rank_with_nothing_of_a_tensor_says_where_it_ends) {
  const test::TempDir folder;
  write_part(folder / shard(1), {{"w", {2}, {0}}});
  write_part(folder / shard(2), {{"w", {0}, {2}}});
  EXPECT_TRUE(open_folder(folder.path())->verify({}).findings.empty());
  write_part(folder / shard(2), {{"w", {0}, {7}}});
  const Findings findings = open_folder(folder.path())->verify({}).findings;
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].code, ErrorCode::kHole);
}

TEST(SafetensorsCheckpoint, ranks_files_that_are_missing_or_contradict_are_refused) {
  const auto refused = [](ErrorCode code, const char* fragment,
                          const std::vector<std::pair<int, Part>>& parts) {
    const test::TempDir folder;
    for (const auto& [number, part] : parts) write_part(folder / shard(number), {part});
    expect_error(code, fragment, [&] { open_folder(folder.path()); });
  };
  refused(ErrorCode::kShardMissing, "the file of shard 2 is missing; shards up to 3 are there",
          {{1, {"w", {1}, {0}}}, {3, {"w", {1}, {1}}}});
  refused(ErrorCode::kShardMissing, "the file of shard 1 is missing", {{2, {"w", {1}, {0}}}});
  refused(ErrorCode::kDtype, "'w' is int32, expected float32",
          {{1, {"w", {1}, {0}}}, {2, {"w", {1}, {1}, DType::kInt32}}});
  refused(ErrorCode::kRank, "'w' has 2 dimensions, expected 1",
          {{1, {"w", {1}, {0}}}, {2, {"w", {1, 1}, {1, 0}}}});
}

TEST(SafetensorsCheckpoint, holes_and_overlaps_of_ranks_are_found) {
  const auto findings = [](std::int64_t second) {
    const test::TempDir folder;
    write_part(folder / shard(1), {{"w", {2}, {0}}});
    write_part(folder / shard(2), {{"w", {2}, {second}}});
    return open_folder(folder.path())->verify({}).findings;
  };
  EXPECT_TRUE(findings(2).empty());
  ASSERT_EQ(findings(3).size(), 1U);
  EXPECT_EQ(findings(3)[0].code, ErrorCode::kHole);
  EXPECT_EQ(findings(1)[0].code, ErrorCode::kOverlap);
}

TEST(SafetensorsCheckpoint, an_index_and_its_files_must_agree) {  // S15
  const auto refused = [](ErrorCode code, const char* fragment, const std::string& map,
                          const std::vector<std::pair<const char*, std::vector<Part>>>& files) {
    const test::TempDir folder;
    for (const auto& [name, parts] : files) write_part(folder / name, parts, false);
    test::write_file(folder / "model.safetensors.index.json", R"({"weight_map":{)" + map + "}}");
    expect_error(code, fragment, [&] { open_folder(folder.path()); });
  };
  const std::vector<std::pair<const char*, std::vector<Part>>> sound = {
      {"1.safetensors", {{"a", {1}, {}}}}, {"2.safetensors", {{"b", {1}, {}}}}};
  refused(ErrorCode::kShardMissing, "'3.safetensors' is missing",
          R"("a":"1.safetensors","b":"3.safetensors")", sound);
  refused(ErrorCode::kIndex, "'b'", R"("a":"1.safetensors","b":"1.safetensors")", sound);
  refused(ErrorCode::kIndex, "'c'",
          R"("a":"1.safetensors","b":"2.safetensors","c":"2.safetensors")", sound);
  refused(ErrorCode::kIndex, "outside the folder", R"("a":"../1.safetensors")", sound);
  refused(
      ErrorCode::kIndex, "'b'", R"("a":"1.safetensors","b":"2.safetensors")",
      {{"1.safetensors", {{"a", {1}, {}}, {"b", {1}, {}}}}, {"2.safetensors", {{"b", {1}, {}}}}});
  refused(ErrorCode::kIndex, "'b'", R"("a":"1.safetensors")",
          {{"1.safetensors", {{"a", {1}, {}}, {"b", {1}, {}}}}});
}

TEST(SafetensorsCheckpoint, an_index_leaves_files_alone_that_it_does_not_name) {
  const test::TempDir folder;
  write_part(folder / "1.safetensors", {{"a", {1}, {}}}, false);
  test::write_file(folder / "other.safetensors", "no safetensors");
  test::write_file(folder / "model.safetensors.index.json",
                   R"({"weight_map":{"a":"1.safetensors"}})");
  EXPECT_EQ(open_folder(folder.path())->index().tensors.size(), 1U);
}

TEST(SafetensorsCheckpoint, an_index_cannot_lead_outside_through_a_link) {  // S15, M17
  const test::TempDir folder;
  fs::create_symlink("/etc/passwd", folder / "1.safetensors");
  test::write_file(folder / "model.safetensors.index.json",
                   R"({"weight_map":{"a":"1.safetensors"}})");
  expect_error(ErrorCode::kPathEscape, "'1.safetensors' leads outside the folder",
               [&] { open_folder(folder.path()); });
}

TEST(SafetensorsCheckpoint, folders_that_can_be_read_in_two_ways_are_refused) {
  const test::TempDir folder;
  write_part(folder / "1.safetensors", {{"a", {1}, {}}}, false);
  write_part(folder / "2.safetensors", {{"a", {1}, {}}}, false);
  expect_error(ErrorCode::kIndex, "'a' is in '1.safetensors' and in '2.safetensors'",
               [&] { open_folder(folder.path()); });
  test::write_file(folder / "a.safetensors.index.json", R"({"weight_map":{"a":"1.safetensors"}})");
  test::write_file(folder / "b.safetensors.index.json", R"({"weight_map":{"a":"2.safetensors"}})");
  expect_error(ErrorCode::kIndex, "has several index files, 'a.safetensors.index.json' and",
               [&] { open_folder(folder.path()); });
  EXPECT_EQ(open_folder(folder.path(), "b.safetensors.index.json")->index().files[0].name,
            "2.safetensors");
}

TEST(SafetensorsCheckpoint, every_cut_of_a_file_is_an_error_that_names_it) {
  const test::TempDir folder;
  const auto bytes =
      test::read_data("golden/2.11.0/hf_plain/ckpt/model-00001-of-00001.safetensors");
  for (std::size_t length = 0; length < bytes.size(); length += 3) {
    test::write_file(folder / "model.safetensors",
                     test::to_text(std::span(bytes).subspan(0, length)));
    try {
      open_file(folder / "model.safetensors");
      ADD_FAILURE() << length;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("model.safetensors: ")) << length;
    }
  }
}

TEST(SafetensorsCheckpoint, holds_tensors_alone) {
  const auto checkpoint =
      open_file(test::data_path("golden/2.11.0/hf_plain/ckpt/model-00001-of-00001.safetensors"));
  expect_error(ErrorCode::kNotFound, "only tensors", [&] { checkpoint->value({"v", {"v"}, {}}); });
  StorageRef storage;
  storage.key = "0";
  expect_error(ErrorCode::kStorage, "no storages", [&] { checkpoint->storage(storage); });
  const test::TempDir folder;
  expect_error(ErrorCode::kNotFound, "holds no safetensors file",
               [&] { open_folder(folder.path()); });
}

}  // namespace
}  // namespace fsdp::formats::safetensors
