// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hdf5/description.h"

#include <string>

#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace fsdp::formats::hdf5 {
namespace {

using test::expect_error;
using test::to_bytes;

constexpr std::uint64_t kFileBytes = 10'000;

Dataset chunked() {
  Dataset dataset;
  dataset.path = {"model", "w"};
  dataset.dtype = DType::kFloat32;
  dataset.shape = {5, 4};
  dataset.storage = Dataset::Storage::kChunked;
  dataset.fill = std::string(4, '\0');
  dataset.chunk_shape = {2, 4};
  dataset.filters = {Filter::kFletcher32};
  dataset.chunks = {{100, 36, 0}, {200, 36, 0}, {300, 36, 0}};
  dataset.crc = 0x12345678;
  dataset.number = 7;
  return dataset;
}

Description example() {
  Description description;
  description.datasets.push_back(chunked());
  Dataset compact;
  compact.path = {"c"};
  compact.dtype = DType::kInt16;
  compact.shape = {2};
  compact.storage = Dataset::Storage::kCompact;
  compact.fill = "ab";
  compact.data = "wxyz";
  description.datasets.push_back(compact);
  description.attributes.push_back(
      {{"a", "list"}, true, {true, std::int64_t{-3}, UINT64_MAX, 0.5, std::string("text")}});
  description.attributes.push_back({{"none"}, false, {}});
  description.empty_groups.push_back({"nothing"});
  description.left_out.push_back({{"x"}, "a named datatype"});
  return description;
}

Description decoded(const std::string& bytes) {
  return decode(to_bytes(bytes), kFileBytes);
}

TEST(Hdf5Description, what_is_encoded_comes_back) {
  const Description got = decoded(encode(example()));
  ASSERT_EQ(got.datasets.size(), 2U);
  EXPECT_EQ(got.datasets[0].path, (Path{"model", "w"}));
  EXPECT_EQ(got.datasets[0].chunks[2].address, 300U);
  EXPECT_EQ(got.datasets[0].crc, 0x12345678U);
  EXPECT_EQ(got.datasets[0].number, 7U);
  EXPECT_EQ(got.datasets[1].data, "wxyz");
  EXPECT_FALSE(got.datasets[1].crc);
  EXPECT_EQ(got.attributes[0].items, example().attributes[0].items);
  EXPECT_TRUE(got.attributes[0].is_list);
  EXPECT_TRUE(got.attributes[1].items.empty());
  EXPECT_EQ(got.empty_groups, example().empty_groups);
  EXPECT_EQ(got.left_out[0].what, "a named datatype");
  EXPECT_EQ(encode(got), encode(example()));
}

TEST(Hdf5Description, every_truncation_is_an_error) {
  const std::string whole = encode(example());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_THROW(decoded(whole.substr(0, length)), Error) << length;
  }
  expect_error(ErrorCode::kH5ReaderFailed, "no end mark", [&] { decoded(whole + "x"); });
}

TEST(Hdf5Description, every_changed_byte_is_read_or_an_error) {
  const std::string whole = encode(example());
  int errors = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const char mask : {'\x01', '\x40', '\x80', '\x7F'}) {
      std::string changed = whole;
      changed[at] = static_cast<char>(changed[at] ^ mask);
      try {
        decoded(changed);
      } catch (const Error&) {
        ++errors;
      }
    }
  }
  EXPECT_GT(errors, 1000);
}

void expect_refused(ErrorCode code, std::string_view words, const Dataset& dataset) {
  Description description;
  description.datasets.push_back(dataset);
  expect_error(code, words, [&] { decoded(encode(description)); });
}

TEST(Hdf5Description, chunks_lie_inside_the_file_and_have_the_size_their_filters_make) {
  Dataset dataset = chunked();
  dataset.chunks[1].address = kFileBytes - 35;
  expect_refused(ErrorCode::kExtent, "/model/w: data at byte 9965 take 36 bytes", dataset);
  dataset = chunked();
  dataset.chunks[1].address = UINT64_MAX - 3;
  expect_refused(ErrorCode::kExtent, "the file has 10000", dataset);
  dataset = chunked();
  dataset.chunks[0].bytes = 32;
  expect_refused(ErrorCode::kH5Open, "has 32 bytes, expected 36", dataset);
  dataset = chunked();
  dataset.chunks.pop_back();
  expect_refused(ErrorCode::kH5ReaderFailed, "another number of chunks", dataset);
}

TEST(Hdf5Description, claims_that_the_file_cannot_justify_are_refused) {
  Dataset dataset = chunked();
  dataset.shape = {std::int64_t{1} << 60, 4};
  expect_refused(ErrorCode::kLimitSize, "claims shape [1152921504606846976, 4] of float32",
                 dataset);
  dataset.shape = {INT64_MAX, INT64_MAX};
  expect_refused(ErrorCode::kLimitSize, "more than a file of 10000 bytes", dataset);
  dataset = chunked();
  dataset.chunk_shape = {0, 4};
  expect_refused(ErrorCode::kH5Open, "chunks without elements", dataset);
  dataset = chunked();
  dataset.chunk_shape = {2};
  expect_refused(ErrorCode::kH5Open, "chunks have 1 dimensions, expected 2", dataset);
  dataset = chunked();
  dataset.shape = {70'000, 4};
  dataset.chunk_shape = {1, 4};
  expect_refused(ErrorCode::kLimitSize, "has 70000 chunks, at most 65536", dataset);
  dataset = chunked();
  dataset.filters = {Filter::kDeflate};
  dataset.chunk_shape = {1 << 20, 1 << 10};
  dataset.chunks.resize(1);
  expect_refused(ErrorCode::kLimitSize, "chunks with filters have", dataset);
}

TEST(Hdf5Description, chunks_that_are_runs_know_their_place) {
  Dataset dataset = chunked();
  auto runs = runs_of(dataset);
  ASSERT_TRUE(runs);
  EXPECT_EQ(runs->begin(2), 64U);
  EXPECT_EQ(runs->bytes(2), 16U);
  EXPECT_EQ(runs->chunk(63), 1U);
  dataset.shape = {2, 5, 4};
  dataset.chunk_shape = {1, 2, 4};
  runs = runs_of(dataset);
  ASSERT_TRUE(runs);
  EXPECT_EQ(runs->group, 3U);
  EXPECT_EQ(runs->begin(3), 80U);
  EXPECT_EQ(runs->bytes(5), 16U);
  EXPECT_EQ(runs->chunk(80), 3U);
  dataset.chunk_shape = {1, 5, 2};
  EXPECT_FALSE(runs_of(dataset));
  dataset.chunk_shape = {2, 2, 4};
  EXPECT_FALSE(runs_of(dataset));
}

TEST(Hdf5Description, what_is_no_data_is_structure_and_data_do_not_overlap) {
  const Dataset dataset = chunked();
  const std::vector<Dataset> twice = {dataset, dataset};  // two names
  const auto data = data_extents(twice);
  ASSERT_EQ(data.size(), 3U);
  const auto structure = structure_extents(data, 400);
  ASSERT_EQ(structure.size(), 4U);
  EXPECT_EQ(structure[1].begin, 136U);
  EXPECT_EQ(structure[3].bytes, 64U);
  const std::vector<Extent> overlapping = {{10, 20}, {29, 5}};
  expect_error(ErrorCode::kExtentOverlap, "data at byte 29",
               [&] { structure_extents(overlapping, 100); });
}

}  // namespace
}  // namespace fsdp::formats::hdf5
