// SPDX-License-Identifier: Apache-2.0
// tests/interop/check_lora.py compares results with NumPy, of every dtype and many sizes.
#include "formats/changes/arithmetic/low_rank.h"

#include <cstring>

#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"
#include "formats/changes/arithmetic/input_reader.h"
#include "formats/front/open.h"
#include "tests/support/golden.h"

namespace fsdp::formats {
namespace {

ThinMatrix matrix_of(const std::vector<float>& numbers, bool transposed = false) {
  ThinMatrix matrix;
  matrix.elements.resize(numbers.size() * sizeof(float));
  std::memcpy(matrix.elements.data(), numbers.data(), matrix.elements.size());
  matrix.transposed = transposed;
  return matrix;
}

// The weight 'w' of the smallest golden checkpoint: [[0, 1, 2], [3, 4, 5]].
class LowRankTest : public testing::Test {
 protected:
  std::vector<float> result(const std::vector<LowRankUpdate>& updates) {
    const InputTensor input{checkpoint_.get(), 0};
    EXPECT_EQ(input.entry().shape, (std::vector<std::int64_t>{2, 3}));
    const auto source = low_rank_source(std::make_unique<InputReader>(input, checks_), updates, 3,
                                        DType::kFloat32, 6);
    std::vector<float> out(6);
    source->read_at(0, std::as_writable_bytes(std::span(out)));
    std::vector<float> parts(6);
    for (std::size_t i = 0; i < 6; ++i)
      source->read_at(i * sizeof(float), std::as_writable_bytes(std::span(parts).subspan(i, 1)));
    EXPECT_EQ(parts, out);
    EXPECT_THROW(source->read_at(2, std::as_writable_bytes(std::span(out).first(1))), Error);
    EXPECT_THROW(source->read_at(4, std::as_writable_bytes(std::span(out))), Error);
    return out;
  }

  std::unique_ptr<Checkpoint> checkpoint_ =
      open_checkpoint(test::data_path("golden/2.11.0/minimal/ckpt"));
  StorageChecks checks_{true};
};

TEST_F(LowRankTest, products_are_scaled_and_added_one_after_the_other) {
  const LowRankUpdate one{matrix_of({1, 10}), matrix_of({1, 2, 3}), 1, 0.5};
  EXPECT_EQ(result({one}), (std::vector<float>{0.5F, 2, 3.5F, 8, 14, 20}));
  const LowRankUpdate two{matrix_of({1, 0, 0, 1}), matrix_of({1, 0, 0, 0, 0, 1}), 2, 1};
  EXPECT_EQ(result({one, two}), (std::vector<float>{1.5F, 2, 3.5F, 8, 14, 21}));
}

TEST_F(LowRankTest, transposed_matrices_are_read_as_meant) {
  const LowRankUpdate plain{matrix_of({1, 2, 3, 4}), matrix_of({1, 2, 3, 4, 5, 6}), 2, 1};
  const LowRankUpdate turned{matrix_of({1, 3, 2, 4}, true), matrix_of({1, 4, 2, 5, 3, 6}, true), 2,
                             1};
  EXPECT_EQ(result({plain}), result({turned}));
}

TEST_F(LowRankTest, every_step_is_rounded) {
  // The second product is lost in the sum of products; added to the weight by itself it would stay.
  const LowRankUpdate update{matrix_of({1, 0x1p-25F, 0, 0}), matrix_of({1, 0, 0, 1, 0, 0}), 2, 1};
  EXPECT_EQ(result({update})[0], 1);
}

}  // namespace
}  // namespace fsdp::formats
