// SPDX-License-Identifier: Apache-2.0
#include "formats/state/content/buffer_names.h"

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

TEST(BufferNames, a_type_without_gradients_or_a_known_name_makes_a_buffer) {
  EXPECT_TRUE(is_buffer("layers.0.norm.running_mean", DType::kFloat32));
  EXPECT_TRUE(is_buffer("inv_freq", DType::kBFloat16));
  EXPECT_TRUE(is_buffer("layers.0.weight", DType::kInt8));
  EXPECT_TRUE(is_buffer("layers.0.weight", DType::kBool));
  EXPECT_FALSE(is_buffer("layers.0.weight", DType::kFloat32));
  EXPECT_FALSE(is_buffer("layers.0.weight", DType::kComplex64));
  EXPECT_FALSE(is_buffer("layers.0.weight", DType::kFloat8E4M3FN));
  EXPECT_FALSE(is_buffer("running_mean.weight", DType::kFloat32));
}

}  // namespace
}  // namespace fsdp::formats
