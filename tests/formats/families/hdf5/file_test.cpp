// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hdf5/file.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats::hdf5 {
namespace {

using test::expect_error;
using test::TempDir;

Description described(std::string_view name) {
  return describe(*file_at(test::data_path("hdf5/" + std::string(name) + ".h5")));
}

TEST(Hdf5File, every_layout_of_h5py_is_described) {
  const Description file = described("layouts");
  std::set<std::string> names;
  for (const Dataset& dataset : file.datasets) names.insert(path_text(dataset.path));
  EXPECT_TRUE(names.contains("/layouts/shuffle_gzip_fletcher"));
  EXPECT_TRUE(names.contains("/tied"));
  EXPECT_TRUE(names.contains("/soft"));
  EXPECT_EQ(file.datasets.size(), 28U);
  EXPECT_EQ(file.empty_groups, (std::vector<Path>{{"nothing"}}));
  EXPECT_EQ(file.attributes.size(), 10U);
  EXPECT_EQ(file.left_out.size(), 3U);  // the matrix, the unit of a dataset, the named type
}

TEST(Hdf5File, the_confined_process_says_the_same) {
  const auto file = file_at(test::data_path("hdf5/layouts.h5"));
  EXPECT_EQ(encode(read_description(*file)), encode(describe(*file)));
}

TEST(Hdf5File, what_no_tensor_can_be_is_refused_by_name) {
  const struct {
    const char* name;
    ErrorCode code;
    const char* words;
  } cases[] = {
      {"external_link", ErrorCode::kH5Link, "/x: is a link into another file"},
      {"external_data", ErrorCode::kH5Link, "/x: keeps its data in other files"},
      {"virtual", ErrorCode::kH5Link, "/v: is virtual"},
      {"soft_link_loop", ErrorCode::kH5Link, "/a: soft link that leads to no object"},
      {"group_in_itself", ErrorCode::kH5Link, "/a/b/c: links form a cycle"},
      {"filter_lzf", ErrorCode::kUnsupported, "/x: has filter 32000 ('lzf')"},
      {"big_endian", ErrorCode::kH5Type, "/x: holds a big-endian float"},
      {"text", ErrorCode::kH5Type, "/x: holds text"},
      {"compound", ErrorCode::kH5Type, "/x: holds a compound"},
      {"reference", ErrorCode::kH5Type, "/x: holds a reference"},
      {"dtype_of_another_width", ErrorCode::kH5Type, "attribute 'dtype' says bfloat16"},
      {"claims_2_to_60", ErrorCode::kLimitSize, "claims shape [1152921504606846976]"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    expect_error(c.code, c.words, [&] { described(c.name); });
    expect_error(c.code, c.words, [&] {
      read_description(*file_at(test::data_path(std::string("hdf5/") + c.name + ".h5")));
    });
  }
}

TEST(Hdf5File, every_truncation_of_a_file_is_an_error_or_readable_and_never_a_crash) {
  const std::string whole = test::to_text(test::read_data("hdf5/big_endian.h5"));
  for (std::size_t length = 0; length < whole.size(); length += 7) {
    const auto bytes = test::to_bytes(whole.substr(0, length));
    EXPECT_THROW(describe(MemorySource(bytes)), Error) << length;
  }
}

TEST(Hdf5File, time_and_memory_of_the_confined_process_are_bounded) {
  const auto file = file_at(test::data_path("hdf5/layouts.h5"));
  ReaderLimits limits;
  limits.wall_seconds = 0;
  expect_error(ErrorCode::kH5ReaderFailed, "was ended after 0 seconds",
               [&] { read_description(*file, limits); });
}

FilePlan small_plan() {
  FilePlan plan;
  plan.datasets.push_back({{"model", "w"}, DType::kFloat32, {5, 3}, {2, 3}, 1, 0});
  plan.datasets.push_back({{"model", "half"}, DType::kBFloat16, {4}, {4}, 2, 1});
  plan.datasets.push_back({{"scalar"}, DType::kBool, {}, {}, 3, 2});
  plan.datasets.push_back({{"empty"}, DType::kComplex64, {0, 2}, {}, 0, 3});
  plan.links.push_back({{"tied", "w"}, 0});
  plan.texts.push_back({{"model", "epoch"}, "3"});
  plan.texts.push_back({{"name"}, "\"größe\""});
  return plan;
}

std::string bytes_of(const FileImage& image) {
  std::string bytes(image.bytes, '\0');
  for (const auto& [offset, run] : image.structure) bytes.replace(offset, run.size(), run);
  return bytes;
}

TEST(Hdf5File, a_plan_is_laid_out_the_same_way_each_time_and_reads_as_it_was_planned) {
  const FilePlan plan = small_plan();
  const FileImage image = lay_out(plan);
  const std::string bytes = bytes_of(image);
  EXPECT_EQ(bytes_of(lay_out(plan)), bytes);
  const auto source = test::to_bytes(bytes);
  const Description file = describe(MemorySource(source));
  ASSERT_EQ(file.datasets.size(), 5U);
  for (const Dataset& dataset : file.datasets) {
    if (dataset.path == Path{"model", "w"} || dataset.path == Path{"tied", "w"}) {
      EXPECT_EQ(dataset.chunks.size(), 3U);
      for (std::size_t c = 0; c < dataset.chunks.size(); ++c) {
        EXPECT_EQ(dataset.chunks[c].address, image.places[0].chunks[c]);
        EXPECT_EQ(dataset.chunks[c].bytes, 28U);
      }
      EXPECT_EQ(dataset.number, 0U);
    }
    if (dataset.path == Path{"model", "half"}) {
      EXPECT_EQ(dataset.dtype, DType::kBFloat16);
    }
    if (dataset.path == Path{"scalar"}) {
      EXPECT_EQ(dataset.address, image.places[2].address);
      EXPECT_EQ(dataset.crc, 3U);
    }
  }
  EXPECT_EQ(std::get<std::string>(file.attributes.at(0).items.at(0)), "\"größe\"");
}

TEST(Hdf5File, checksums_change_no_place) {
  FilePlan plan = small_plan();
  const FileImage before = lay_out(plan);
  plan.datasets[0].crc = 0xFFFFFFFF;
  const FileImage after = lay_out(plan);
  EXPECT_EQ(after.bytes, before.bytes);
  EXPECT_EQ(after.places[0].chunks, before.places[0].chunks);
  EXPECT_NE(bytes_of(after), bytes_of(before));
}

TEST(Hdf5File, every_dtype_of_pytorch_has_a_place) {
  FilePlan plan;
  for (int i = 0; i <= static_cast<int>(DType::kQUInt2x4); ++i) {
    if (!is_torch_dtype(static_cast<DType>(i))) continue;
    plan.datasets.push_back({{std::to_string(i)}, static_cast<DType>(i), {3}, {3}, 0, 0});
  }
  const auto bytes = test::to_bytes(bytes_of(lay_out(plan)));
  const Description file = describe(MemorySource(bytes));
  ASSERT_EQ(file.datasets.size(), plan.datasets.size());
  for (const Dataset& dataset : file.datasets) {
    EXPECT_EQ(std::to_string(static_cast<int>(dataset.dtype)), dataset.path[0]);
  }
}

TEST(Hdf5File, what_libhdf5_does_not_take_is_said_with_its_words) {
  FilePlan plan;
  plan.datasets.push_back({{"x"}, DType::kInt8, {1}, {}, {}, {}});
  plan.datasets.push_back({{"x"}, DType::kInt8, {1}, {}, {}, {}});
  expect_error(ErrorCode::kUnsupported, "name already exists", [&] { lay_out(plan); });
}

}  // namespace
}  // namespace fsdp::formats::hdf5
