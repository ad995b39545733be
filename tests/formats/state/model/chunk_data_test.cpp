// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/chunk_data.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "formats/bytes/base/crc32.h"
#include "formats/state/model/box.h"

namespace fsdp::formats {
namespace {

// A storage of 32-bit numbers 0, 1, 2, ...
struct Storage {
  explicit Storage(std::size_t count) : numbers(count) {
    std::iota(numbers.begin(), numbers.end(), 0U);
  }
  ChunkData data() const {
    ChunkData data;
    data.source = std::make_shared<MemorySource>(std::as_bytes(std::span(numbers)));
    data.storage_bytes = numbers.size() * 4;
    data.dtype = DType::kFloat32;
    return data;
  }
  std::vector<std::uint32_t> numbers;
};

std::vector<std::uint32_t> read_box(const ChunkData& data, const std::vector<std::int64_t>& chunk,
                                    const Box& part, std::size_t scratch_bytes,
                                    std::optional<DenseRun>* run = nullptr) {
  std::vector<std::uint32_t> out(volume(part.view()), 0xFFFFFFFFU);
  std::vector<std::byte> scratch(scratch_bytes);
  const auto result =
      gather(data, chunk, part.offset, part.size, std::as_writable_bytes(std::span(out)),
             row_major_strides(part.size), scratch);
  if (run != nullptr) *run = result;
  return out;
}

// Applies the definition in chunk_data.h, element by element.
std::vector<std::uint32_t> expected(const ChunkData& data, const std::vector<std::int64_t>& strides,
                                    const Box& part) {
  std::vector<std::uint32_t> out;
  const std::uint64_t count = volume(part.view());
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t rest = i;
    std::uint64_t at = data.first;
    for (std::size_t d = part.size.size(); d-- > 0;) {
      const auto size = static_cast<std::uint64_t>(part.size[d]);
      at += (static_cast<std::uint64_t>(part.offset[d]) + rest % size) *
            static_cast<std::uint64_t>(strides[d]);
      rest /= size;
    }
    out.push_back(static_cast<std::uint32_t>(at));
  }
  return out;
}

TEST(Gather, a_dense_chunk_is_one_run_with_its_crc) {
  const Storage storage(24);
  std::optional<DenseRun> run;
  const auto out = read_box(storage.data(), {4, 6}, {{1, 0}, {2, 6}}, 4096, &run);
  EXPECT_EQ(out, (std::vector<std::uint32_t>{6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}));
  ASSERT_TRUE(run);
  EXPECT_EQ(run->begin, 24U);
  EXPECT_EQ(run->bytes, 48U);
  EXPECT_EQ(run->crc, crc32(0, std::as_bytes(std::span(storage.numbers)).subspan(24, 48)));
}

TEST(Gather, columns_of_a_dense_chunk_are_no_run) {
  const Storage storage(24);
  std::optional<DenseRun> run;
  EXPECT_EQ(read_box(storage.data(), {4, 6}, {{0, 2}, {4, 1}}, 4096, &run),
            (std::vector<std::uint32_t>{2, 8, 14, 20}));
  EXPECT_FALSE(run);
}

TEST(Gather, rank_0_reads_one_element) {
  const Storage storage(24);
  ChunkData data = storage.data();
  data.first = 5;
  EXPECT_EQ(read_box(data, {}, {}, 64), (std::vector<std::uint32_t>{5}));
}

TEST(Gather, transposed_expanded_and_stepped_views_read_as_defined_with_any_scratch) {
  const Storage storage(5000);
  struct Case {
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;
    std::uint64_t first;
  };
  const std::vector<Case> cases = {
      {{40, 50}, {1, 40}, 0},         // transposed
      {{40, 30}, {0, 1}, 7},          // expanded along the first dimension
      {{10, 20}, {200, 3}, 11},       // steps in both
      {{5, 6, 7}, {1, 100, 700}, 2},  // all dimensions turned around
      {{5, 1, 9}, {9, 77, 1}, 0},     // a dimension of one with an odd stride
  };
  for (const Case& c : cases) {
    ChunkData data = storage.data();
    data.strides = c.strides;
    data.first = c.first;
    std::mt19937 random(3);
    for (int round = 0; round < 50; ++round) {
      Box part;
      for (const std::int64_t size : c.shape) {
        const auto begin = static_cast<std::int64_t>(random() % static_cast<unsigned>(size));
        part.offset.push_back(begin);
        part.size.push_back(
            1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(size - begin)));
      }
      for (const std::size_t scratch : {std::size_t{4}, std::size_t{64}, std::size_t{100'000}}) {
        ASSERT_EQ(read_box(data, c.shape, part, scratch), expected(data, c.strides, part));
      }
    }
  }
}

// Remembers the most bytes that were read at once.
class WatchedSource : public MemorySource {
 public:
  using MemorySource::MemorySource;
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    most = std::max(most, out.size());
    MemorySource::read_at(offset, out);
  }
  mutable std::size_t most = 0;
};

TEST(SameElements, chunks_of_any_shape_are_compared_in_bounded_reads) {
  constexpr std::size_t kCount = 3'000'000;
  const std::vector<std::vector<std::int64_t>> shapes = {
      {kCount}, {1, kCount}, {kCount, 1}, {3, kCount / 3}, {2, 1, kCount / 4, 2}};
  const Storage one(kCount);
  for (const auto& shape : shapes) {
    for (const std::size_t changed : {std::size_t{0}, kCount / 2 + 1, kCount - 1, kCount}) {
      Storage other(kCount);
      if (changed < kCount) ++other.numbers[changed];
      const auto source = std::make_shared<WatchedSource>(std::as_bytes(std::span(other.numbers)));
      ChunkData data = other.data();
      data.source = source;
      EXPECT_EQ(same_elements(one.data(), data, shape), changed == kCount) << changed;
      EXPECT_GT(source->most, 0U);
      EXPECT_LE(source->most, 4U << 20U);
    }
  }
}

TEST(SameElements, elements_count_and_not_how_they_lie) {
  const Storage one(6);
  Storage turned(6);
  turned.numbers = {0, 3, 1, 4, 2, 5};
  ChunkData data = turned.data();
  data.strides = {1, 2};
  EXPECT_TRUE(same_elements(one.data(), data, std::vector<std::int64_t>{2, 3}));
  EXPECT_FALSE(same_elements(one.data(), turned.data(), std::vector<std::int64_t>{2, 3}));
}

TEST(TransformElements, conjugation_flips_the_sign_of_imaginary_parts) {
  std::vector<float> numbers = {1, 2, 3, -4};
  ChunkData data;
  data.dtype = DType::kComplex64;
  data.conjugate = true;
  transform_elements(data, std::as_writable_bytes(std::span(numbers)));
  EXPECT_EQ(numbers, (std::vector<float>{1, -2, 3, 4}));
}

TEST(TransformElements, negation_flips_every_sign) {
  std::vector<double> numbers = {1, -2};
  ChunkData data;
  data.dtype = DType::kFloat64;
  data.negate = true;
  transform_elements(data, std::as_writable_bytes(std::span(numbers)));
  EXPECT_EQ(numbers, (std::vector<double>{-1, 2}));
}

TEST(TransformElements, byte_order_swaps_each_half_of_a_complex_number) {
  std::vector<unsigned char> bytes = {0, 1, 2, 3, 4, 5, 6, 7};
  ChunkData data;
  data.dtype = DType::kComplex64;
  data.swap_bytes = true;
  transform_elements(data, std::as_writable_bytes(std::span(bytes)));
  EXPECT_EQ(bytes, (std::vector<unsigned char>{3, 2, 1, 0, 7, 6, 5, 4}));
}

}  // namespace
}  // namespace fsdp::formats
