// SPDX-License-Identifier: Apache-2.0
#include "formats/families/safetensors/index.h"

#include <gtest/gtest.h>

#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace fsdp::formats::safetensors {
namespace {

using fsdp::test::expect_error;

std::string read_text(std::string_view relative) {
  return fsdp::test::to_text(fsdp::test::read_data(relative));
}

Header read_golden(std::string_view relative) {
  return read_header(*file_at(fsdp::test::data_path(relative)));
}

std::string map_of(std::string_view members) {
  return cat(R"({"weight_map":{)", members, "}}");
}

TEST(SafetensorsIndex, the_index_of_pytorch_is_read_and_written_to_the_byte) {
  for (const char* relative : {"golden/2.11.0/hf_map/ckpt/model.safetensors.index.json",
                               "golden/2.11.0/hf_plain/ckpt/model.safetensors.index.json",
                               "golden/2.11.0/hf_consolidated/ckpt/model.safetensors.index.json"}) {
    const std::string text = read_text(relative);
    const FileIndex index = parse_index(text);
    EXPECT_EQ(index.total_size, 40u);
    ASSERT_EQ(index.weight_map.size(), 3u);
    EXPECT_EQ(make_index(index), text);
  }
}

TEST(SafetensorsIndex, files_are_listed_once_in_order_of_mention) {
  const FileIndex index = parse_index(map_of(
      R"("a":"2.safetensors","b":"1.safetensors","c":"2.safetensors","d":"sub/3.safetensors")"));
  EXPECT_EQ(files_of(index),
            (std::vector<std::string>{"2.safetensors", "1.safetensors", "sub/3.safetensors"}));
  EXPECT_FALSE(index.total_size);
  EXPECT_EQ(index.weight_map[3].tensor, "d");
}

TEST(SafetensorsIndex, the_total_may_be_absent_or_a_whole_number_of_any_spelling) {
  const struct {
    const char* metadata;
    std::optional<std::uint64_t> expected;
  } kCases[] = {{"{}", std::nullopt},
                {"null", std::nullopt},
                {R"({"total_size":0})", 0},
                {R"({"total_size":40.0,"total_parameters":7})", 40},
                {R"({"total_size":9223372036854775807})", INT64_MAX}};
  for (const auto& c : kCases) {
    EXPECT_EQ(parse_index(cat(R"({"metadata":)", c.metadata, R"(,"weight_map":{}})")).total_size,
              c.expected);
  }
}

TEST(SafetensorsIndex, each_way_to_be_wrong_says_what) {
  const struct {
    std::string text;
    ErrorCode code;
    const char* fragment;
  } kCases[] = {
      {"", ErrorCode::kJson, "byte 0"},
      {std::string(1000, '['), ErrorCode::kJsonDepth, "more than 128"},
      {"[]", ErrorCode::kIndex, "the index is an array, expected an object"},
      {"{}", ErrorCode::kIndex, "has no weight_map"},
      {R"({"weight_map":[]})", ErrorCode::kIndex, "weight_map is an array"},
      {R"({"metadata":7,"weight_map":{}})", ErrorCode::kIndex, "metadata is an integer"},
      {R"({"metadata":{"total_size":-1},"weight_map":{}})", ErrorCode::kIndex,
       "total_size is '-1'"},
      {R"({"metadata":{"total_size":0.5},"weight_map":{}})", ErrorCode::kIndex,
       "total_size is '0.5'"},
      {R"({"metadata":{"total_size":1e300},"weight_map":{}})", ErrorCode::kIndex,
       "total_size is '1e+300'"},
      {R"({"metadata":{"total_size":"40"},"weight_map":{}})", ErrorCode::kIndex, "total_size is"},
      {map_of(R"("a":7)"), ErrorCode::kIndex, "tensor 'a': its file is an integer"},
      {map_of(R"("a":"1.safetensors","a":"2.safetensors")"), ErrorCode::kIndex,
       "key 'a' at byte 35"},
      {map_of(R"("a":"")"), ErrorCode::kIndex, "is not a .safetensors file"},
      {map_of(R"("a":"pytorch_model-00001.bin")"), ErrorCode::kIndex,
       "'pytorch_model-00001.bin' is not a .safetensors file"},
      {map_of(R"("a":"../x.safetensors")"), ErrorCode::kIndex,
       "'../x.safetensors' lies outside the folder"},
      {map_of(R"("a":"sub/../../x.safetensors")"), ErrorCode::kIndex, "lies outside the folder"},
      {map_of(R"("a":"/etc/x.safetensors")"), ErrorCode::kIndex, "lies outside the folder"},
      {map_of(R"("a":"./x.safetensors")"), ErrorCode::kIndex, "empty component"},
      {map_of(R"("a":"sub//x.safetensors")"), ErrorCode::kIndex, "empty component"},
      {map_of(R"("a":"x\u0000.safetensors")"), ErrorCode::kIndex, "NUL byte"},
      {map_of("\"a\":\"" + std::string(5000, 'x') + ".safetensors\""), ErrorCode::kIndex,
       "has a name of 5012 bytes"},
      {map_of(R"("":"x.safetensors")"), ErrorCode::kName, "is empty"},
      {map_of(R"("a\n":"x.safetensors")"), ErrorCode::kName, "control character"},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(quote(c.text, 200));
    expect_error(c.code, c.fragment, [&] { parse_index(c.text); });
  }
}

TEST(SafetensorsIndex, what_cannot_be_read_is_not_written) {
  expect_error(ErrorCode::kIndex, "'a' occurs twice", [] {
    make_index({{{"a", "1.safetensors"}, {"a", "1.safetensors"}}, 0});
  });
  expect_error(ErrorCode::kIndex, "outside", [] { make_index({{{"a", "../1.safetensors"}}, 0}); });
  expect_error(ErrorCode::kName, "not UTF-8", [] { make_index({{{"\xFF", "1.safetensors"}}, 0}); });
  EXPECT_EQ(make_index({}), "{\n  \"metadata\": {},\n  \"weight_map\": {}\n}");
}

TEST(SafetensorsIndex, every_change_of_one_byte_is_read_or_an_error_of_ours) {
  std::string text = read_text("golden/2.11.0/hf_map/ckpt/model.safetensors.index.json");
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char before = text[at];
    for (int value = 0; value < 256; ++value) {
      text[at] = static_cast<char>(value);
      try {
        parse_index(text);
      } catch (const Error&) {
      }
    }
    text[at] = before;
    EXPECT_THROW(parse_index(std::string_view(text).substr(0, at)), Error);
  }
}

TEST(SafetensorsIndex, agrees_with_the_headers_of_pytorchs_files) {
  const FileIndex index =
      parse_index(read_text("golden/2.11.0/hf_map/ckpt/model.safetensors.index.json"));
  const Header first = read_golden("golden/2.11.0/hf_map/ckpt/model-00001-of-00002.safetensors");
  const Header second = read_golden("golden/2.11.0/hf_map/ckpt/model-00002-of-00002.safetensors");
  const std::vector<FileHeader> files = {{"model-00001-of-00002.safetensors", &first},
                                         {"model-00002-of-00002.safetensors", &second}};
  EXPECT_NO_THROW(check_index(index, files));

  const auto owner_of = [](FileIndex changed, std::size_t entry) -> FileIndex {
    changed.weight_map[entry].file = "model-00001-of-00002.safetensors";
    return changed;
  };
  expect_error(ErrorCode::kIndex,
               "tensor 'b' lies in 'model-00002-of-00002.safetensors', but the map says "
               "'model-00001-of-00002.safetensors'",
               [&] { check_index(owner_of(index, 1), files); });
  FileIndex more = index;
  more.weight_map.push_back({"c", "model-00002-of-00002.safetensors"});
  expect_error(ErrorCode::kIndex, "tensor 'c' is missing from 'model-00002-of-00002.safetensors'",
               [&] { check_index(more, files); });
  FileIndex fewer = index;
  fewer.weight_map.pop_back();
  expect_error(
      ErrorCode::kIndex,
      "tensor 'layer.10.w' lies in 'model-00002-of-00002.safetensors', but is not in the map",
      [&] { check_index(fewer, files); });
  const std::vector<FileHeader> twice = {{"model-00001-of-00002.safetensors", &first},
                                         {"model-00002-of-00002.safetensors", &first}};
  expect_error(ErrorCode::kIndex, "tensor 'a' lies in 'model-00002-of-00002.safetensors'",
               [&] { check_index(index, twice); });
}

TEST(SavedOffsets, are_those_of_pytorchs_rank_files) {
  const Header second =
      read_golden("golden/2.11.0/hf_sharded/ckpt/shard-00002-model-00001-of-00001.safetensors");
  const auto offsets = saved_offsets(second);
  ASSERT_TRUE(offsets);
  ASSERT_EQ(offsets->size(), 2u);
  EXPECT_EQ((*offsets)[0].tensor, "rows");
  EXPECT_EQ((*offsets)[0].offsets, (std::vector<std::int64_t>{2, 0}));
  EXPECT_EQ((*offsets)[1].tensor, "plain");
  EXPECT_EQ((*offsets)[1].offsets, std::vector<std::int64_t>{0});
  const Header empty =
      read_golden("golden/2.11.0/hf_sharded/ckpt/shard-00004-model-00001-of-00001.safetensors");
  EXPECT_EQ((*saved_offsets(empty))[0].offsets, (std::vector<std::int64_t>{5, 0}));
  const Header later =
      read_golden("golden/2.15.0/hf_safetensors/ckpt/shard-00002-model-00001-of-00001.safetensors");
  EXPECT_EQ(saved_offsets(later)->size(), later.tensors.size());
}

TEST(SavedOffsets, of_a_file_without_them_are_nothing) {
  EXPECT_FALSE(saved_offsets(
      read_golden("golden/2.11.0/hf_consolidated/ckpt/model-00001-of-00001.safetensors")));
  EXPECT_FALSE(saved_offsets(Header{}));
}

TEST(SavedOffsets, each_way_to_be_wrong_says_what) {
  Header header;
  header.tensors = {{"w", DType::kFloat32, {2, 3}, 0, 24}, {"s", DType::kFloat32, {}, 24, 4}};
  const struct {
    const char* text;
    ErrorCode code;
    const char* fragment;
  } kCases[] = {
      {"", ErrorCode::kStMetadata, "DCP_SHARDING_INFO: not valid JSON at byte 0"},
      {"[]", ErrorCode::kStMetadata, "is an array, expected an object"},
      {"{}", ErrorCode::kStMetadata, "does not list tensor 'w'"},
      {R"({"w":{"saved_offsets":[0,0]}})", ErrorCode::kStMetadata, "does not list tensor 's'"},
      {R"({"x":{"saved_offsets":[0,0]}})", ErrorCode::kStMetadata, "tensor 'x' is not in the file"},
      {R"({"w":{}})", ErrorCode::kStMetadata, "tensor 'w': has no saved_offsets"},
      {R"({"w":7})", ErrorCode::kStMetadata, "has no saved_offsets"},
      {R"({"w":{"saved_offsets":7}})", ErrorCode::kStMetadata,
       "saved_offsets is an integer, expected an array"},
      {R"({"w":{"saved_offsets":[0]}})", ErrorCode::kStMetadata, "has 1 offsets, but 2 dimensions"},
      {R"({"s":{"saved_offsets":[0]}})", ErrorCode::kStMetadata, "has 1 offsets, but 0 dimensions"},
      {R"({"w":{"saved_offsets":[-1,0]}})", ErrorCode::kStMetadata, "has offset '-1'"},
      {R"({"w":{"saved_offsets":[0.0,0]}})", ErrorCode::kStMetadata, "has offset '0.0'"},
      {R"({"w":{"saved_offsets":["0",0]}})", ErrorCode::kStMetadata, "has offset"},
      {R"({"w":{"saved_offsets":[9223372036854775806,0]}})", ErrorCode::kStMetadata,
       "make more than 2^63 - 1"},
      {R"({"w":{"saved_offsets":[0,0]},"w":{"saved_offsets":[0,0]}})", ErrorCode::kStMetadata,
       "a second time"},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.text);
    header.metadata = {{"format", "pt"}, {"DCP_SHARDING_INFO", c.text}};
    expect_error(c.code, c.fragment, [&] { saved_offsets(header); });
  }
  header.metadata = {{"DCP_SHARDING_INFO", std::string(1000, '[')}};
  expect_error(ErrorCode::kJsonDepth, "more than 128", [&] { saved_offsets(header); });
}

TEST(SavedOffsets, written_ones_are_read_back) {
  Header header;
  header.tensors = {{"w\"", DType::kFloat32, {2, 3}, 0, 24}, {"s", DType::kFloat32, {}, 24, 4}};
  const std::vector<SavedOffsets> written = {{"s", {}}, {"w\"", {4, 0}}};
  header.metadata = sharding_metadata(written);
  EXPECT_EQ(header.metadata[0], (std::pair<std::string, std::string>("format", "pt")));
  EXPECT_EQ(header.metadata[1], (std::pair<std::string, std::string>("DCP_VERSION", "1.0")));
  const auto read = saved_offsets(header);
  ASSERT_TRUE(read);
  EXPECT_EQ((*read)[0].offsets, (std::vector<std::int64_t>{4, 0}));
  EXPECT_EQ((*read)[1].offsets, std::vector<std::int64_t>{});
}

}  // namespace
}  // namespace fsdp::formats::safetensors
