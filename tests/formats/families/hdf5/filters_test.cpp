// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hdf5/filters.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "formats/bytes/base/byte_source.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace fsdp::formats::hdf5 {
namespace {

using test::expect_error;
using test::to_bytes;

std::string ramp() {
  std::string text;
  for (int i = 0; i < 256 * 37; ++i) text += static_cast<char>(i % 256);
  return text;
}

TEST(Hdf5Filters, fletcher32_is_what_libhdf5_puts_behind_a_chunk) {
  // The four bytes after chunks that h5py 3.16 wrote.
  EXPECT_EQ(fletcher32(to_bytes("The quick brown fox jumps over the lazy dog")), 0xCD538D5BU);
  EXPECT_EQ(fletcher32(to_bytes(std::string(1000, '\0'))), 0U);
  EXPECT_EQ(fletcher32(to_bytes(std::string(1001, '\xFF'))), 0xFF00FF00U);
  EXPECT_EQ(fletcher32(to_bytes(ramp())), 0x4708C936U);
}

TEST(Hdf5Filters, fletcher32_of_parts_in_any_order_is_that_of_the_whole) {
  const auto bytes = to_bytes(ramp() + "x");
  const std::uint32_t whole = fletcher32(bytes);
  for (const std::size_t step : {1U, 2U, 3U, 719U, 720U, 721U, 5000U}) {
    Fletcher32 sum(bytes.size());
    for (std::size_t at = (bytes.size() - 1) / step * step;; at -= step) {
      Fletcher32 part(bytes.size());
      part.add(at, std::span(bytes).subspan(at, std::min(step, bytes.size() - at)));
      sum.merge(part);
      if (at == 0) break;
    }
    EXPECT_EQ(sum.value(), whole) << "parts of " << step << " bytes";
  }
}

TEST(Hdf5Filters, bytes_that_are_not_given_count_as_zeros) {
  auto bytes = to_bytes("rows of an edge chunk");
  Fletcher32 sum(64);
  sum.add(0, bytes);
  bytes.resize(64);
  EXPECT_EQ(sum.value(), fletcher32(bytes));
}

TEST(Hdf5Filters, checksums_of_old_libraries_are_swapped_in_pairs) {
  EXPECT_TRUE(same_fletcher(0x12345678, 0x12345678));
  EXPECT_TRUE(same_fletcher(0x34127856, 0x12345678));
  EXPECT_FALSE(same_fletcher(0x56781234, 0x12345678));
}

Dataset one_chunk(DType dtype, std::int64_t count, std::vector<Filter> filters,
                  std::uint64_t stored) {
  Dataset dataset;
  dataset.path = {"x"};
  dataset.dtype = dtype;
  dataset.shape = {count};
  dataset.chunk_shape = {count};
  dataset.storage = Dataset::Storage::kChunked;
  dataset.filters = std::move(filters);
  dataset.chunks = {{0, stored, 0}};
  return dataset;
}

TEST(Hdf5Filters, shuffled_bytes_go_back_to_their_elements) {
  const auto stored = to_bytes(std::string("acebdf"));
  const Dataset dataset = one_chunk(DType::kInt16, 3, {Filter::kShuffle}, stored.size());
  EXPECT_EQ(test::to_text(undo_filters(dataset, dataset.chunks[0], MemorySource(stored))),
            "abcdef");
}

TEST(Hdf5Filters, a_deflated_chunk_is_compared_with_its_adler_32) {
  // zlib.compress(b"wiki wiki wiki!") by Python 3.11.
  std::string stored("\x78\x9c\x2b\xcf\xcc\xce\x54\x28\x87\x11\x8a\x00\x2d\xfa\x05\x7e", 16);
  Dataset dataset = one_chunk(DType::kUInt8, 15, {Filter::kDeflate}, stored.size());
  const auto read = [&] {
    return undo_filters(dataset, dataset.chunks[0], MemorySource(to_bytes(stored)));
  };
  EXPECT_EQ(test::to_text(read()), "wiki wiki wiki!");
  stored.back() = static_cast<char>(stored.back() ^ 1);
  expect_error(ErrorCode::kH5Checksum, "Adler-32 stored", read);
  stored[0] = 'x';
  stored[1] = 'x';
  expect_error(ErrorCode::kH5Open, "no zlib header", read);
  dataset.chunks[0].bytes = 5;
  expect_error(ErrorCode::kH5Open, "too short", read);
}

TEST(Hdf5Filters, a_chunk_larger_than_its_elements_can_become_is_refused_before_it_is_read) {
  const Dataset dataset = one_chunk(DType::kUInt8, 10, {Filter::kDeflate}, 1U << 30U);
  expect_error(ErrorCode::kH5Open, "more than 10 can become",
               [&] { undo_filters(dataset, dataset.chunks[0], MemorySource({})); });
}

TEST(Hdf5Filters, a_filter_that_the_mask_leaves_out_is_not_undone) {
  const auto stored = to_bytes(std::string("acebdf"));
  Dataset dataset = one_chunk(DType::kInt16, 3, {Filter::kShuffle}, stored.size());
  dataset.chunks[0].filter_mask = 1;
  EXPECT_EQ(test::to_text(undo_filters(dataset, dataset.chunks[0], MemorySource(stored))),
            "acebdf");
}

}  // namespace
}  // namespace fsdp::formats::hdf5
