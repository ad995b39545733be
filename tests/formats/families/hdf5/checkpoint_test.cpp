// SPDX-License-Identifier: Apache-2.0
// HDF5 checkpoints read and written. tests/interop checks that h5py and PyTorch see the same.
#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "formats/bytes/base/crc32.h"
#include "formats/bytes/base/error.h"
#include "formats/families/hdf5/data.h"
#include "formats/families/hdf5/hdf5.h"
#include "formats/families/torch/torch.h"
#include "formats/front/open.h"
#include "formats/state/checkpoint/source_pieces.h"
#include "formats/state/content/content.h"
#include "formats/state/content/tensor_value.h"
#include "formats/state/model/tensor_reader.h"
#include "tests/support/expect_error.h"
#include "tests/support/findings.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats::hdf5 {
namespace {

namespace fs = std::filesystem;
using test::data_path;
using test::expect_error;
using test::TempDir;

// Writes `source` as HDF5.
OutputPlan convert(const fs::path& source, const fs::path& destination, unsigned threads = 1) {
  const auto checkpoint = open_checkpoint(source);
  const auto output =
      plan_hdf5_output(*checkpoint, content_of(*checkpoint), destination, {true, false});
  CopyOptions options;
  options.threads = threads;
  output->write(options);
  return output->plan();
}

// Returns the dense elements of a tensor, with every checksum compared.
std::string elements(const Checkpoint& checkpoint, const std::string& key) {
  for (std::size_t t = 0; t < checkpoint.index().tensors.size(); ++t) {
    if (checkpoint.index().tensors[t].key != key) continue;
    std::string out(checkpoint.index().tensors[t].bytes(), '\0');
    const std::vector<TargetPiece> pieces = {whole_tensor_piece(checkpoint, t)};
    visit_pieces(pieces, {}, [&](const TensorBlock& block) {
      std::copy_n(reinterpret_cast<const char*>(block.bytes.data()), block.bytes.size(),
                  out.begin() + static_cast<std::ptrdiff_t>(block.offset));
    });
    return out;
  }
  return "no tensor " + key;
}

std::string floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

// Returns 0, 1, 2, ... as make_hdf5.py writes them.
std::string numbers() {
  std::vector<float> values;
  for (int i = 0; i < 120; ++i) values.push_back(static_cast<float>(i));
  return floats(values);
}

class Hdf5 : public ::testing::Test {
 protected:
  // Returns all findings, or the error of opening it.
  std::vector<std::string> faults(const std::string& bytes) {
    const fs::path path = temp_ / "changed.h5";
    test::write_file(path, bytes);
    try {
      return test::verified(*open_hdf5(path));
    } catch (const Error& error) {
      return {std::string(code_name(error.code())) + " " + error.what()};
    }
  }
  TempDir temp_;
};

TEST_F(Hdf5, every_layout_of_h5py_gives_the_same_elements) {
  const auto file = open_checkpoint(data_path("hdf5/layouts.h5"));
  EXPECT_EQ(file->description().format, "hdf5");
  for (const char* name : {"contiguous", "chunked", "fletcher", "grid_fletcher", "gzip",
                           "shuffle_gzip_fletcher", "shuffle", "grown", "compact"}) {
    EXPECT_EQ(elements(*file, std::string("layouts.") + name), numbers()) << name;
  }
  EXPECT_EQ(elements(*file, "tied"), numbers());
  EXPECT_EQ(elements(*file, "soft"), numbers());
}

TEST_F(Hdf5, what_was_never_written_is_the_fill_value) {
  const auto file = open_checkpoint(data_path("hdf5/layouts.h5"));
  std::vector<float> expected(120, 2.5F);
  for (std::size_t i = 0; i < 5; ++i) {
    for (std::size_t j = 0; j < 4; ++j) expected[i * 10 + j] = 1;
  }
  EXPECT_EQ(elements(*file, "fill.partly"), floats(expected));
  std::string nines;
  for (int i = 0; i < 6; ++i) nines += std::string("\x09\0\0\0", 4);
  EXPECT_EQ(elements(*file, "fill.unwritten"), nines);
}

TEST_F(Hdf5, types_of_h5py_are_dtypes) {
  const auto file = open_checkpoint(data_path("hdf5/layouts.h5"));
  const std::map<std::string, DType> expected = {
      {"types.f2", DType::kFloat16},     {"types.f8", DType::kFloat64},
      {"types.i1", DType::kInt8},        {"types.i2", DType::kInt16},
      {"types.i4", DType::kInt32},       {"types.i8", DType::kInt64},
      {"types.u1", DType::kUInt8},       {"types.u2", DType::kUInt16},
      {"types.u4", DType::kUInt32},      {"types.u8", DType::kUInt64},
      {"types.bool", DType::kBool},      {"types.c8", DType::kComplex64},
      {"types.c16", DType::kComplex128}, {"types.bf16", DType::kBFloat16},
      {"types.scalar", DType::kFloat64}};
  std::size_t found = 0;
  for (const TensorEntry& tensor : file->index().tensors) {
    const auto at = expected.find(tensor.key);
    if (at == expected.end()) continue;
    ++found;
    EXPECT_EQ(tensor.dtype, at->second) << tensor.key;
  }
  EXPECT_EQ(found, expected.size());
}

TEST_F(Hdf5, plain_attributes_are_values_and_the_rest_is_said_to_be_left_out) {
  const auto file = open_checkpoint(data_path("hdf5/layouts.h5"));
  const auto value = [&](const std::string& key) {
    for (const ValueEntry& entry : file->index().values) {
      if (entry.key == key) return file->value(entry);
    }
    return Value::string("no value " + key);
  };
  EXPECT_EQ(value("epoch").as_int(), 3);
  EXPECT_EQ(value("lr").as_float(), 0.125);
  EXPECT_EQ(*value("name").as_string(), "text");
  EXPECT_EQ(*value("fixed").as_string(), "abc");
  EXPECT_EQ(value("done").as_bool(), true);
  EXPECT_EQ(value("sizes").items().size(), 3U);
  EXPECT_EQ(*value("names").items()[1].as_string(), "b");
  EXPECT_EQ(value("big").kind(), ValueKind::kBigInt);
  EXPECT_TRUE(value("no_value").is_none());
  EXPECT_EQ(value("nothing").kind(), ValueKind::kDict);
  EXPECT_EQ(test::lines(file->findings()),
            (std::vector<std::string>{
                "warning H5_TYPE layouts.h5: 'types': the attribute is left out: a dataset or "
                "group has the same name",
                "warning H5_TYPE layouts.h5: attribute 'matrix' of 2 dimensions is left out",
                "warning H5_TYPE layouts.h5: 'layouts.gzip': attribute 'unit' of a dataset is "
                "left out",
                "warning H5_TYPE layouts.h5: 'named_type': a named datatype is left out"}));
}

TEST_F(Hdf5, verify_says_what_carries_no_checksum) {
  VerifyOptions options;
  const VerifyReport report = open_hdf5(data_path("hdf5/layouts.h5"))->verify(options);
  for (const Finding& finding : report.findings)
    EXPECT_EQ(finding.severity, Finding::Severity::kWarning) << finding_text(finding);
  EXPECT_GT(report.bytes_checked, 2000U);
  EXPECT_GT(report.bytes_unchecked, 1500U);
}

TEST_F(Hdf5, a_file_is_as_long_as_planned_and_the_same_each_time) {
  for (const char* name : {"2.1.2/odd_pt", "2.11.0/nested_pt", "2.11.0/sparse_pt"}) {
    const fs::path source = data_path(std::string("golden/") + name + "/full.pt");
    const OutputPlan plan = convert(source, temp_ / "a.h5");
    convert(source, temp_ / "b.h5", 3);
    EXPECT_EQ(plan.files.at(0).bytes, fs::file_size(temp_ / "a.h5"));
    EXPECT_EQ(test::read_file(temp_ / "a.h5"), test::read_file(temp_ / "b.h5"));
    const auto written = open_checkpoint(temp_ / "a.h5");
    EXPECT_EQ(written->description().layout, "fsdp");
    EXPECT_EQ(test::verified(*written), std::vector<std::string>{});
    VerifyOptions options;
    EXPECT_EQ(written->verify(options).bytes_unchecked, 0U);
  }
}

TEST_F(Hdf5, tensors_and_values_keep_their_keys_and_order) {
  const fs::path source = data_path("golden/2.1.2/odd_pt/full.pt");
  convert(source, temp_ / "a.h5");
  const auto before = open_checkpoint(source);
  const auto after = open_checkpoint(temp_ / "a.h5");
  ASSERT_EQ(after->index().tensors.size(), before->index().tensors.size());
  for (std::size_t t = 0; t < before->index().tensors.size(); ++t) {
    const TensorEntry& want = before->index().tensors[t];
    EXPECT_EQ(after->index().tensors[t].key, want.key);
    EXPECT_EQ(after->index().tensors[t].dtype, want.dtype) << want.key;
    EXPECT_EQ(after->index().tensors[t].shape, want.shape) << want.key;
    EXPECT_EQ(elements(*after, want.key), elements(*before, want.key)) << want.key;
  }
  ASSERT_EQ(after->index().values.size(), before->index().values.size());
  for (std::size_t v = 0; v < before->index().values.size(); ++v)
    EXPECT_EQ(after->index().values[v].key, before->index().values[v].key);
}

TEST_F(Hdf5, chunks_are_whole_rows_spread_evenly) {
  const auto shape = std::vector<std::int64_t>{3, 700, 401};
  const auto chunk = chunk_shape_for(shape, 4);
  EXPECT_EQ(chunk, (std::vector<std::int64_t>{1, 350, 401}));
  EXPECT_EQ(chunk_shape_for(std::vector<std::int64_t>{10, 3}, 4),
            (std::vector<std::int64_t>{10, 3}));
  EXPECT_EQ(chunk_shape_for(std::vector<std::int64_t>{2, 1'000'000}, 4),
            (std::vector<std::int64_t>{1, 250'000}));
  EXPECT_TRUE(chunk_shape_for(std::vector<std::int64_t>{}, 4).empty());
  EXPECT_TRUE(chunk_shape_for(std::vector<std::int64_t>{4, 0}, 4).empty());
  EXPECT_TRUE(chunk_shape_for(std::vector<std::int64_t>(40, 1), 4).empty());
}

TEST_F(Hdf5, every_truncation_is_an_error) {
  convert(data_path("golden/2.11.0/zip_pt/full.pt"), temp_ / "a.h5");
  const std::string whole = test::to_text(test::read_file(temp_ / "a.h5"));
  for (std::size_t length = 0; length < whole.size(); length += 17) {
    test::write_file(temp_ / "cut.h5", whole.substr(0, length));
    EXPECT_THROW(open_hdf5(temp_ / "cut.h5"), Error) << length;
  }
}

TEST_F(Hdf5, every_flipped_bit_is_found) {
  convert(data_path("golden/2.11.0/zip_pt/full.pt"), temp_ / "a.h5");
  const std::string whole = test::to_text(test::read_file(temp_ / "a.h5"));
  ASSERT_EQ(faults(whole), std::vector<std::string>{});
  for (std::size_t at = 0; at < whole.size(); at += 11) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << at % 8));
    EXPECT_FALSE(faults(flipped).empty()) << "byte " << at;
  }
}

TEST_F(Hdf5, a_damaged_chunk_is_named_with_its_tensor_and_stops_a_copy) {
  convert(data_path("golden/2.11.0/zip_pt/full.pt"), temp_ / "a.h5");
  const auto file = open_hdf5(temp_ / "a.h5");
  const TensorEntry& tensor = file->index().tensors.at(0);
  const Location location = tensor.chunks.location(0);
  std::string bytes = test::to_text(test::read_file(temp_ / "a.h5"));
  bytes[location.offset] = static_cast<char>(bytes[location.offset] ^ 4);
  const auto found = faults(bytes);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_TRUE(found[0].starts_with("H5_CHECKSUM changed.h5: '" + tensor.key + "': chunk at byte"))
      << found[0];
  expect_error(ErrorCode::kH5Checksum, tensor.key,
               [&] { elements(*open_hdf5(temp_ / "changed.h5"), tensor.key); });
}

TEST_F(Hdf5, a_damaged_chunk_of_another_program_is_named) {
  const fs::path path = data_path("hdf5/layouts.h5");
  const auto file = open_hdf5(path);
  for (const TensorEntry& tensor : file->index().tensors) {
    if (tensor.key != "layouts.grid_fletcher") continue;
    std::string bytes = test::to_text(test::read_file(path));
    const Location location = tensor.chunks.location(4);
    bytes[location.offset + 3] = static_cast<char>(bytes[location.offset + 3] ^ 4);
    std::vector<std::string> found = faults(bytes);
    std::erase_if(found, [](const std::string& line) { return line.starts_with("warning"); });
    ASSERT_EQ(found.size(), 1U);
    EXPECT_TRUE(found[0].starts_with("H5_CHECKSUM changed.h5: 'layouts.grid_fletcher': chunk at"))
        << found[0];
    expect_error(ErrorCode::kH5Checksum, "/layouts/grid_fletcher: chunk at byte",
                 [&] { elements(*open_hdf5(temp_ / "changed.h5"), tensor.key); });
    return;
  }
  FAIL() << "no such tensor";
}

TEST_F(Hdf5, user_blocks_and_other_files_are_refused) {
  expect_error(ErrorCode::kH5Open, "has a user block of 512 bytes",
               [&] { open_checkpoint(data_path("hdf5/user_block.h5")); });
  test::write_file(temp_ / "x.h5", "no HDF5 at all");
  expect_error(ErrorCode::kH5Open, "no HDF5 signature", [&] { open_hdf5(temp_ / "x.h5"); });
  test::write_file(temp_ / "empty.h5", "");
  expect_error(ErrorCode::kEmpty, "has no bytes", [&] { open_hdf5(temp_ / "empty.h5"); });
}

TEST_F(Hdf5, ties_and_containers_come_back) {
  const fs::path source = data_path("golden/2.11.0/zip_pt/full.pt");
  convert(source, temp_ / "a.h5");
  const auto h5 = open_checkpoint(temp_ / "a.h5");
  const Value content = content_of(*h5);
  const Value original = content_of(*open_checkpoint(source));
  const auto leaves = leaves_of(content);
  const auto wanted = leaves_of(original);
  ASSERT_EQ(leaves.size(), wanted.size());
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      EXPECT_EQ(leaves[i].value.identity() == leaves[j].value.identity(),
                wanted[i].value.identity() == wanted[j].value.identity())
          << leaves[i].key << " and " << leaves[j].key;
    }
  }
}

TEST_F(Hdf5, nothing_is_written_before_it_is_complete) {
  const auto checkpoint = open_checkpoint(data_path("golden/2.11.0/zip_pt/full.pt"));
  const auto output =
      plan_hdf5_output(*checkpoint, content_of(*checkpoint), temp_ / "a.h5", {false, false});
  EXPECT_FALSE(fs::exists(temp_ / "a.h5"));
  CopyOptions options;
  options.cancelled = [] { return true; };
  expect_error(ErrorCode::kInterrupted, "interrupted", [&] { output->write(options); });
  EXPECT_TRUE(fs::is_empty(temp_.path()));
}

}  // namespace
}  // namespace fsdp::formats::hdf5
