// SPDX-License-Identifier: Apache-2.0
// tests/interop/check_lora.py compares results with NumPy, of every dtype and many sizes.
#include "formats/changes/arithmetic/low_rank.h"

#include <cstring>

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

ThinMatrix matrix_of(const std::vector<float>& numbers, bool transposed = false) {
  ThinMatrix matrix;
  matrix.elements.resize(numbers.size() * sizeof(float));
  std::memcpy(matrix.elements.data(), numbers.data(), matrix.elements.size());
  matrix.transposed = transposed;
  return matrix;
}

// Of the weight [[0, 1, 2], [3, 4, 5]].
std::vector<float> result(const std::vector<LowRankUpdate>& updates) {
  const std::vector<float> weight = {0, 1, 2, 3, 4, 5};
  const auto kernel = low_rank_kernel(DType::kFloat32, updates, weight.size());
  std::vector<double> scratch(weight.size());
  const auto apply = [&](std::size_t first, std::span<float> out) {
    kernel->apply(first, std::as_bytes(std::span(weight).subspan(first, out.size())),
                  std::as_writable_bytes(std::span(scratch)), DType::kFloat32,
                  std::as_writable_bytes(out));
  };
  std::vector<float> out(weight.size());
  apply(0, out);
  std::vector<float> parts(weight.size());
  for (std::size_t i = 0; i < parts.size(); ++i) apply(i, std::span(parts).subspan(i, 1));
  EXPECT_EQ(parts, out);
  return out;
}

TEST(LowRank, products_are_scaled_and_added_one_after_the_other) {
  const LowRankUpdate one{matrix_of({1, 10}), matrix_of({1, 2, 3}), 1, 0.5};
  EXPECT_EQ(result({one}), (std::vector<float>{0.5F, 2, 3.5F, 8, 14, 20}));
  const LowRankUpdate two{matrix_of({1, 0, 0, 1}), matrix_of({1, 0, 0, 0, 0, 1}), 2, 1};
  EXPECT_EQ(result({one, two}), (std::vector<float>{1.5F, 2, 3.5F, 8, 14, 21}));
}

TEST(LowRank, transposed_matrices_are_read_as_meant) {
  const LowRankUpdate plain{matrix_of({1, 2, 3, 4}), matrix_of({1, 2, 3, 4, 5, 6}), 2, 1};
  const LowRankUpdate turned{matrix_of({1, 3, 2, 4}, true), matrix_of({1, 4, 2, 5, 3, 6}, true), 2,
                             1};
  EXPECT_EQ(result({plain}), result({turned}));
}

TEST(LowRank, every_step_is_rounded) {
  // The second product is lost in the sum of products; added to the weight by itself it would stay.
  const LowRankUpdate update{matrix_of({1, 0x1p-25F, 0, 0}), matrix_of({1, 0, 0, 1, 0, 0}), 2, 1};
  EXPECT_EQ(result({update})[0], 1);
}

}  // namespace
}  // namespace fsdp::formats
