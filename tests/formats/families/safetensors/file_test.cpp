// SPDX-License-Identifier: Apache-2.0
#include "formats/families/safetensors/file.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>

#include <gtest/gtest.h>

#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace fsdp::formats::safetensors {
namespace {

using fsdp::test::expect_error;
using fsdp::test::read_data;
using fsdp::test::to_bytes;

std::string length_text(std::uint64_t length) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>((length >> (8 * i)) & 0xFFU);
  return out;
}

// A file with this JSON as header and so many bytes of data.
std::string file_of(std::string_view json, std::size_t data_bytes = 0) {
  return length_text(json.size()) + std::string(json) + std::string(data_bytes, 'd');
}

Header read(std::string_view file, std::uint64_t offset = 0,
            Trailing trailing = Trailing::kRefuse) {
  return read_header(MemorySource(std::as_bytes(std::span(file))), offset, trailing);
}

// "a float32 [2, 3] 72+24" of each tensor.
std::vector<std::string> lines(const Header& header) {
  std::vector<std::string> out;
  for (const Tensor& tensor : header.tensors) {
    out.push_back(cat(tensor.name, " ", torch_name(tensor.dtype), " ", shape_text(tensor.shape),
                      " ", tensor.begin, "+", tensor.bytes));
  }
  return out;
}

std::vector<std::filesystem::path> golden_files() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(fsdp::test::data_path("golden"))) {
    if (entry.path().extension() == ".safetensors") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

TEST(Safetensors, a_file_of_pytorch_is_read_in_file_order) {
  const Header header = read_header(*file_at(
      fsdp::test::data_path("golden/2.11.0/hf_plain/ckpt/model-00001-of-00001.safetensors")));
  EXPECT_EQ(lines(header),
            (std::vector<std::string>{"a float32 [4] 376+16", "layer.10.w float32 [3] 392+12",
                                      "b bfloat16 [2, 3] 404+12"}));
  EXPECT_EQ(header.data_offset, 376u);
  EXPECT_EQ(header.end, 416u);
  // PyTorch writes the metadata in an order that changes from run to run.
  const std::map<std::string, std::string> metadata(header.metadata.begin(), header.metadata.end());
  EXPECT_EQ(header.metadata.size(), 3u);
  EXPECT_EQ(metadata.at("format"), "pt");
  EXPECT_EQ(metadata.at("DCP_VERSION"), "1.0");
}

TEST(Safetensors, an_unpadded_header_without_metadata_is_read) {
  const Header header = read_header(*file_at(fsdp::test::data_path(
      "golden/2.11.0/hf_consolidated/ckpt/model-00001-of-00001.safetensors")));
  EXPECT_EQ(header.data_offset, 209u);
  EXPECT_TRUE(header.metadata.empty());
  EXPECT_EQ(lines(header)[2], "layer.10.w float32 [3] 237+12");
}

TEST(Safetensors, every_file_of_pytorch_is_read_and_its_header_written_again_says_the_same) {
  const auto paths = golden_files();
  ASSERT_GE(paths.size(), 9u);
  for (const auto& path : paths) {
    SCOPED_TRACE(path);
    const auto file = file_at(path);
    const Header header = read_header(*file);
    EXPECT_EQ(header.end, file->size());
    std::vector<Tensor> tensors = header.tensors;
    const std::string start = make_header(tensors, header.metadata);
    const Header again = read(start + std::string(header.end - header.data_offset, 'd'));
    EXPECT_EQ(again.metadata, header.metadata);
    ASSERT_EQ(again.tensors.size(), header.tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_EQ(again.tensors[i].name, header.tensors[i].name);
      EXPECT_EQ(again.tensors[i].dtype, header.tensors[i].dtype);
      EXPECT_EQ(again.tensors[i].shape, header.tensors[i].shape);
      EXPECT_EQ(again.tensors[i].begin - again.data_offset,
                header.tensors[i].begin - header.data_offset);
      EXPECT_EQ(tensors[i].begin, again.tensors[i].begin);
    }
  }
}

TEST(Safetensors, what_is_accepted) {
  const struct {
    const char* json;
    std::size_t data_bytes;
    std::vector<std::string> expected;  // positions follow the JSON
  } kCases[] = {
      {"{}", 0, {}},
      {"{}      ", 0, {}},
      {"{ } \n\t", 0, {}},
      {R"({"__metadata__":{}})", 0, {}},
      {R"({"s":{"dtype":"F64","shape":[],"data_offsets":[0,8]}})", 8, {"s float64 [] 61+8"}},
      {R"({"e":{"dtype":"F32","shape":[0,3],"data_offsets":[0,0]}})", 0, {"e float32 [0, 3] 64+0"}},
      {R"({"e":{"dtype":"F32","shape":[0,4611686018427387904],"data_offsets":[0,0]}})",
       0,
       {"e float32 [0, 4611686018427387904] 82+0"}},
      {R"({"b":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})", 2, {"b bool [2] 63+2"}},
      {R"({"../../x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
       1,
       {"../../x uint8 [1] 67+1"}},
      {R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[3,4]},"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})",
       4,
       {"a uint8 [3] 113+3", "b uint8 [1] 116+1"}},
      {R"({"full":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"empty":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
       1,
       {"empty uint8 [0] 120+0", "full uint8 [1] 120+1"}},
      {R"({"f":{"dtype":"F4","shape":[3,8],"data_offsets":[0,12]}})",
       12,
       {"f float4_e2m1fn_x2 [3, 4] 64+12"}},
      {R"({"f":{"dtype":"F6_E2M3","shape":[3,8],"data_offsets":[0,18]}})",
       18,
       {"f float6_e2m3fn_x4 [3, 2] 69+18"}},
      {R"({"f":{"dtype":"F6_E3M2","shape":[4],"data_offsets":[0,3]}})",
       3,
       {"f float6_e3m2fn_x4 [1] 66+3"}},
      {R"({"u":{"dtype":"U8","note":{"a":[1,{"dtype":99999999999999999999}]},"note":7,"shape":[1],"data_offsets":[0,1]}})",
       1,
       {"u uint8 [1] 118+1"}},
      {R"({"caf\u00e9":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
       1,
       {"caf\xC3\xA9 uint8 [1] 69+1"}},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.json);
    EXPECT_EQ(lines(read(file_of(c.json, c.data_bytes))), c.expected);
  }
}

// The cases of the reliability table, and more of each kind.
TEST(Safetensors, each_way_to_be_wrong_has_its_code_and_says_what_and_where) {
  const std::string rank_65 = [] {
    std::string shape = "1";
    for (int i = 0; i < 64; ++i) shape += ",1";
    return R"({"a":{"dtype":"U8","shape":[)" + shape + R"(],"data_offsets":[0,1]}})";
  }();
  const std::string long_name =
      "{\"" + std::string(70'000, 'n') + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  const struct {
    std::string file;
    ErrorCode code;
    const char* fragment;
  } kCases[] = {
      // The length.
      {"", ErrorCode::kStHeader, "takes 8 bytes at byte 0, but only 0 remain"},
      {"1234567", ErrorCode::kStHeader, "only 7 remain"},
      {length_text(0), ErrorCode::kStHeader, "the length of the header is 0 bytes"},
      {length_text(0) + "{}", ErrorCode::kStHeader, "the length of the header is 0 bytes"},
      {length_text(3) + "{}", ErrorCode::kStHeader,
       "the length of the header is 3 bytes at byte 8, but only 2 remain"},
      {length_text(100'000'001) + "{}", ErrorCode::kStHeader, "at most 100000000"},
      {length_text(std::uint64_t{1} << 63) + "{}", ErrorCode::kStHeader,
       "the length of the header is 9223372036854775808 bytes"},
      {length_text(UINT64_MAX) + "{}", ErrorCode::kStHeader, "18446744073709551615"},
      // The JSON.
      {file_of(" {}"), ErrorCode::kStJson, "begins with ' ' at byte 8, expected '{'"},
      {file_of("[]"), ErrorCode::kStJson, "begins with '['"},
      {file_of("\xEF\xBB\xBF{}"), ErrorCode::kStJson, "expected '{'"},
      {file_of("{}" + std::string(6, '\0')), ErrorCode::kStJson, "byte 10"},
      {file_of("{\"\xFF\":1}"), ErrorCode::kStJson, "ill-formed UTF-8"},
      {file_of("{} x"), ErrorCode::kStJson, "byte 11"},
      {file_of(R"({"a")"), ErrorCode::kStJson, "unexpected end of input"},
      {file_of(R"({"a":{"x":)" + std::string(100'000, '[')), ErrorCode::kJsonDepth,
       "more than 128"},
      // Names.
      {file_of(
           R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
           2),
       ErrorCode::kStDuplicate, "tensor 'a' occurs in the header a second time at byte 61"},
      {file_of(R"({"__metadata__":{},"__metadata__":{}})"), ErrorCode::kStDuplicate,
       "__metadata__"},
      {file_of(R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1), ErrorCode::kName,
       "byte 9: tensor name '' is empty"},
      {file_of(R"({"a\u0000b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
       ErrorCode::kName, "'a\\x00b' has a control character at position 1"},
      {file_of(R"({"a\nb":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1), ErrorCode::kName,
       "control character"},
      {file_of(R"({"\u007f":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
       ErrorCode::kName, "control character"},
      {file_of(long_name, 1), ErrorCode::kName, "has 70000 bytes, at most 65536"},
      // Fields.
      {file_of(R"({"a":{"dtype":"U8","shape":[1]}})"), ErrorCode::kStField,
       "tensor 'a' at byte 9: has no field data_offsets"},
      {file_of(R"({"a":{"shape":[1],"data_offsets":[0,1]}})"), ErrorCode::kStField,
       "has no field dtype"},
      {file_of(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})"), ErrorCode::kStField,
       "has no field shape"},
      {file_of(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})"),
       ErrorCode::kStField, "has field dtype twice"},
      {file_of(R"({"a":{"shape":[],"dtype":"U8","shape":[1],"data_offsets":[0,1]}})"),
       ErrorCode::kStField, "has field shape twice"},
      {file_of(R"({"a":{"data_offsets":[0,1],"data_offsets":[0,1]}})"), ErrorCode::kStField,
       "has field data_offsets twice"},
      {file_of(R"({"a":7})"), ErrorCode::kStField, "is an integer, expected an object"},
      {file_of(R"({"a":[]})"), ErrorCode::kStField, "is an array, expected an object"},
      {file_of(R"({"a":99999999999999999999})"), ErrorCode::kStField, "expected an object"},
      {file_of(R"({"a":{"dtype":7}})"), ErrorCode::kStField,
       "field dtype is an integer, expected a string"},
      {file_of(R"({"a":{"dtype":["U8"]}})"), ErrorCode::kStField, "field dtype is an array"},
      {file_of(R"({"a":{"shape":{}}})"), ErrorCode::kStField,
       "field shape is an object, expected an array"},
      {file_of(R"({"a":{"shape":"1"}})"), ErrorCode::kStField, "field shape is a string"},
      {file_of(R"({"a":{"data_offsets":null}})"), ErrorCode::kStField,
       "field data_offsets is null"},
      // dtype.
      {file_of(R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", 4), ErrorCode::kStDtype,
       "tensor 'a' at byte 9: has dtype 'F31', which is unknown"},
      {file_of(R"({"a":{"dtype":"","shape":[1],"data_offsets":[0,4]}})", 4), ErrorCode::kStDtype,
       "dtype ''"},
      {file_of(R"({"a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}})", 1), ErrorCode::kStDtype,
       "must be even"},
      {file_of(R"({"a":{"dtype":"F4","shape":[],"data_offsets":[0,1]}})", 1), ErrorCode::kStDtype,
       "must be even"},
      {file_of(R"({"a":{"dtype":"F6_E2M3","shape":[4,3],"data_offsets":[0,9]}})", 9),
       ErrorCode::kStDtype, "must be a multiple of 4"},
      {file_of(R"({"a":{"dtype":"F6_E2M3","shape":[8],"data_offsets":[0,7]}})", 7),
       ErrorCode::kStSize, "takes 6 bytes"},
      // shape.
      {file_of(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1), ErrorCode::kStShape,
       "has dimension '-1'"},
      {file_of(R"({"a":{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}})"), ErrorCode::kStShape,
       "has dimension '-0.0'"},
      {file_of(R"({"a":{"dtype":"U8","shape":[2.0],"data_offsets":[0,2]}})", 2),
       ErrorCode::kStShape, "has dimension '2.0'"},
      {file_of(R"({"a":{"dtype":"U8","shape":[1e0],"data_offsets":[0,1]}})", 1),
       ErrorCode::kStShape, "has dimension '1.0'"},
      {file_of(R"({"a":{"dtype":"U8","shape":["1"],"data_offsets":[0,1]}})", 1),
       ErrorCode::kStShape, "has dimension"},
      {file_of(R"({"a":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}})", 1),
       ErrorCode::kStShape, "'an array'"},
      {file_of(R"({"a":{"dtype":"U8","shape":[{}],"data_offsets":[0,1]}})", 1), ErrorCode::kStShape,
       "'an object'"},
      {file_of(R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]}})"),
       ErrorCode::kStShape, "'9223372036854775808'"},
      {file_of(
           R"({"a":{"dtype":"U8","shape":[1000000000000000000000000000000],"data_offsets":[0,1]}})"),
       ErrorCode::kStShape, "'1000000000000000000000000000000'"},
      {file_of(R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,1]}})"),
       ErrorCode::kStShape, "more than 2^64 bits"},
      {file_of(R"({"a":{"dtype":"F64","shape":[288230376151711744],"data_offsets":[0,0]}})"),
       ErrorCode::kStShape, "more than 2^64 bits"},
      {file_of(R"({"a":{"dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}})"),
       ErrorCode::kStShape, "more than 2^64 bits"},
      {file_of(rank_65, 1), ErrorCode::kStShape, "more than 64 dimensions"},
      // data_offsets.
      {file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})"), ErrorCode::kStOffsets,
       "begins at byte 1 of the data, behind its end 0"},
      {file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})"), ErrorCode::kStOffsets,
       "has 1 data_offsets"},
      {file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[]}})"), ErrorCode::kStOffsets,
       "has 0 data_offsets"},
      {file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})"), ErrorCode::kStOffsets,
       "more than two"},
      {file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}})"), ErrorCode::kStOffsets,
       "data offset '-1'"},
      {file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1.0]}})"), ErrorCode::kStOffsets,
       "data offset '1.0'"},
      {file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,99999999999999999999]}})"),
       ErrorCode::kStOffsets, "'99999999999999999999'"},
      {file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,[]]}})"), ErrorCode::kStOffsets,
       "'an array'"},
      {file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2),
       ErrorCode::kStOffsets,
       "tensor 'a' begins at byte 1 of the data, but the data begin at byte 0; the bytes between"},
      {file_of(
           R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}})",
           4),
       ErrorCode::kStOffsets,
       "tensor 'b' begins at byte 3 of the data, but tensor 'a' ends at byte 2; the bytes"},
      {file_of(
           R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
           3),
       ErrorCode::kStOffsets, "ends at byte 2; they overlap"},
      {file_of(
           R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
           2),
       ErrorCode::kStOffsets, "they overlap"},
      {file_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 1),
       ErrorCode::kStOffsets, "take 2 bytes behind the header, but only 1 remain"},
      {file_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 3),
       ErrorCode::kStOffsets, "but 1 bytes follow"},
      {file_of("{}", 1), ErrorCode::kStOffsets, "the tensors end at byte 10, but 1 bytes follow"},
      {file_of(
           R"({"a":{"dtype":"U8","shape":[9223372036854775807],"data_offsets":[0,9223372036854775807]}})"),
       ErrorCode::kStShape, "more than 2^64 bits"},
      // Sizes.
      {file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,7]}})", 7), ErrorCode::kStSize,
       "F32 [2] takes 8 bytes, but data_offsets span 7"},
      {file_of(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,0]}})"), ErrorCode::kStSize,
       "takes 4 bytes"},
      {file_of(R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,4]}})", 4), ErrorCode::kStSize,
       "takes 0 bytes"},
      // Metadata.
      {file_of(R"({"__metadata__":{"k":1}})"), ErrorCode::kStMetadata,
       "value of 'k' is an integer, expected a string"},
      {file_of(R"({"__metadata__":{"k":{}}})"), ErrorCode::kStMetadata,
       "value of 'k' is an object"},
      {file_of(R"({"__metadata__":{"k":["v"]}})"), ErrorCode::kStMetadata,
       "value of 'k' is an array"},
      {file_of(R"({"__metadata__":null})"), ErrorCode::kStMetadata, "__metadata__ is null"},
      {file_of(R"({"__metadata__":[]})"), ErrorCode::kStMetadata, "__metadata__ is an array"},
      {file_of(R"({"__metadata__":{"k":"v","k":"w"}})"), ErrorCode::kStMetadata,
       "key 'k' occurs twice"},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(quote(c.file, 200));
    expect_error(c.code, c.fragment, [&] { read(c.file); });
  }
}

TEST(Safetensors, behind_other_bytes_positions_count_from_the_start_of_the_source) {
  const std::string file =
      "0123456789" + file_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2);
  const Header header = read(file, 10);
  EXPECT_EQ(lines(header), std::vector<std::string>{"a uint8 [2] 71+2"});
  EXPECT_EQ(header.data_offset, 71u);
  EXPECT_EQ(header.end, file.size());
  expect_error(ErrorCode::kStField, "tensor 'b' at byte 19",
               [] { read("0123456789" + file_of(R"({"b":1})"), 10); });
  expect_error(ErrorCode::kStHeader, "begins at byte 99", [&] { read(file, 99); });
  expect_error(ErrorCode::kStHeader, "only 0 remain", [&] { read(file, file.size()); });
}

TEST(Safetensors, bytes_behind_the_last_tensor_are_allowed_where_asked) {
  const std::string file = file_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 7);
  EXPECT_EQ(read(file, 0, Trailing::kAllow).end, file.size() - 5);
  expect_error(ErrorCode::kStOffsets, "only 1 remain",
               [&] { read(file.substr(0, file.size() - 6), 0, Trailing::kAllow); });
}

TEST(Safetensors, every_truncation_of_a_real_file_is_an_error) {
  const auto bytes = read_data("golden/2.11.0/hf_plain/ckpt/model-00001-of-00001.safetensors");
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const MemorySource source{std::span(bytes).first(length)};
    try {
      read_header(source);
      ADD_FAILURE() << "accepted at " << length;
    } catch (const Error& e) {
      EXPECT_TRUE(e.code() == ErrorCode::kStHeader || e.code() == ErrorCode::kStOffsets)
          << e.what();
    }
  }
}

TEST(Safetensors, every_change_of_one_byte_of_a_real_file_is_read_or_an_error_of_ours) {
  auto bytes =
      read_data("golden/2.11.0/hf_sharded/ckpt/shard-00003-model-00001-of-00001.safetensors");
  std::size_t accepted = 0;
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    const std::byte before = bytes[at];
    for (int value = 0; value < 256; ++value) {
      bytes[at] = static_cast<std::byte>(value);
      try {
        const Header header = read_header(MemorySource(bytes));
        ++accepted;
        EXPECT_EQ(header.end, bytes.size());
      } catch (const Error&) {
      }
    }
    bytes[at] = before;
  }
  // All of the data, letters of names and metadata, blanks; but not nearly the whole header.
  EXPECT_GT(accepted, 12u * 256);
  EXPECT_LT(accepted, bytes.size() * 256 / 2);
}

TEST(Safetensors, a_hundred_thousand_tensors_take_well_under_a_second_and_memory_like_the_file) {
  std::vector<Tensor> tensors(100'000);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    tensors[i] = {
        cat("model.layers.", i, ".self_attn.q_proj.weight"), DType::kBFloat16, {0, 4096}, 0, 0};
  }
  const std::string file = make_header(tensors, {{"format", "pt"}});
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(read(file).tensors.size(), tensors.size());
  // 0.2 s optimised on the slowest machine tried; sanitizers take their time.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(SafetensorsWriter, a_header_is_padded_compact_and_in_the_order_given) {
  std::vector<Tensor> tensors = {{"b", DType::kFloat32, {2}, 0, 8}, {"a", DType::kBool, {}, 0, 1}};
  const std::string start = make_header(tensors, {{"format", "pt"}});
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
      R"("a":{"dtype":"BOOL","shape":[],"data_offsets":[8,9]}})";
  EXPECT_EQ(start.size() % 8, 0u);
  EXPECT_EQ(start, length_text(start.size() - 8) + json +
                       std::string(start.size() - 8 - json.size(), ' '));
  EXPECT_EQ(tensors[0].begin, start.size());
  EXPECT_EQ(tensors[1].begin, start.size() + 8);
}

TEST(SafetensorsWriter, nothing_at_all_is_a_file) {
  std::vector<Tensor> none;
  EXPECT_EQ(make_header(none, {}), length_text(8) + "{}      ");
}

TEST(SafetensorsWriter, elements_of_4_bits_are_counted_singly_in_the_file) {
  std::vector<Tensor> tensors = {{"f", DType::kFloat4E2M1FNx2, {3, 4}, 0, 12}};
  const std::string start = make_header(tensors, {});
  EXPECT_NE(start.find(R"("shape":[3,8])"), std::string::npos);
  EXPECT_EQ(read(start + std::string(12, 'd')).tensors[0].shape, (std::vector<std::int64_t>{3, 4}));
}

TEST(SafetensorsWriter, elements_of_6_bits_are_counted_singly_in_the_file) {
  std::vector<Tensor> tensors = {{"f", DType::kFloat6E3M2FNx4, {3, 2}, 0, 18}};
  const std::string start = make_header(tensors, {});
  EXPECT_NE(start.find(R"("dtype":"F6_E3M2","shape":[3,8])"), std::string::npos);
  EXPECT_EQ(read(start + std::string(18, 'd')).tensors[0].shape, (std::vector<std::int64_t>{3, 2}));
}

TEST(SafetensorsWriter, what_a_file_cannot_hold_is_refused) {
  using Metadata = std::vector<std::pair<std::string, std::string>>;
  const struct {
    std::vector<Tensor> tensors;
    Metadata metadata;
    ErrorCode code;
    const char* fragment;
  } kCases[] = {
      {{{"a", DType::kComplex128, {1}, 0, 16}},
       {},
       ErrorCode::kUnsupported,
       "'a': safetensors has no type for complex128"},
      {{{"a", DType::kQInt8, {1}, 0, 1}}, {}, ErrorCode::kUnsupported, "no type for qint8"},
      {{{"a", DType::kFloat4E2M1FNx2, {}, 0, 1}},
       {},
       ErrorCode::kUnsupported,
       "elements of 4 bits"},
      {{{"a", DType::kFloat4E2M1FNx2, {INT64_MAX}, 0, 1}},
       {},
       ErrorCode::kUnsupported,
       "elements of 4 bits"},
      {{{"a", DType::kUInt8, {2}, 0, 3}},
       {},
       ErrorCode::kStSize,
       "uint8 [2] takes 2 bytes, but 3 are to be written"},
      {{{"a", DType::kUInt8, {-1}, 0, 1}},
       {},
       ErrorCode::kStShape,
       "[-1] has a negative dimension"},
      {{{"a", DType::kUInt8, std::vector<std::int64_t>(65, 1), 0, 1}},
       {},
       ErrorCode::kStShape,
       "has 65 dimensions"},
      {{{"a", DType::kFloat64, {INT64_MAX}, 0, 1}}, {}, ErrorCode::kStShape, "more than 2^64 bits"},
      {{{"a", DType::kUInt8, {0}, 0, 0}, {"a", DType::kUInt8, {0}, 0, 0}},
       {},
       ErrorCode::kStDuplicate,
       "'a' occurs twice"},
      {{{"", DType::kUInt8, {0}, 0, 0}}, {}, ErrorCode::kName, "is empty"},
      {{{"__metadata__", DType::kUInt8, {0}, 0, 0}}, {}, ErrorCode::kName, "reserved"},
      {{{"\xFF", DType::kUInt8, {0}, 0, 0}}, {}, ErrorCode::kName, "is not UTF-8"},
      {{}, {{"k", "\xFF"}}, ErrorCode::kStMetadata, "not UTF-8"},
      {{}, {{"k", "a"}, {"k", "b"}}, ErrorCode::kStMetadata, "'k' occurs twice"},
      {{}, {{"k", std::string(100'000'000, 'x')}}, ErrorCode::kStHeader, "at most 100000000"},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.fragment);
    auto tensors = c.tensors;
    expect_error(c.code, c.fragment, [&] { make_header(tensors, c.metadata); });
  }
}

TEST(SafetensorsWriter, large_elements_come_first_then_names) {
  std::vector<Tensor> tensors = {{"b", DType::kUInt8, {}, 0, 1},
                                 {"c", DType::kFloat64, {}, 0, 8},
                                 {"f", DType::kFloat4E2M1FNx2, {1}, 0, 1},
                                 {"a", DType::kUInt8, {}, 0, 1}};
  std::sort(tensors.begin(), tensors.end(), stored_before);
  std::string order;
  for (const Tensor& tensor : tensors) order += tensor.name;
  EXPECT_EQ(order, "cabf");
}

}  // namespace
}  // namespace fsdp::formats::safetensors
