// SPDX-License-Identifier: Apache-2.0
#include "formats/families/flat/parameter_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fsdp::formats::flat {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(ParameterList, has_names_shapes_and_ties_in_the_order_of_the_text) {
  const ParameterList list = parse_parameter_list(
      R"({"b.weight": [3, 4], "a": [], "c.weight": "b.weight", "d": {"dtype": "F32", "shape": [2]},
          "__metadata__": {"format": "pt"}})",
      "x.json");
  EXPECT_EQ(list.origin, "x.json");
  ASSERT_EQ(list.parameters.size(), 4U);
  EXPECT_EQ(list.parameters[0].name, "b.weight");
  EXPECT_THAT(list.parameters[0].shape, ElementsAre(3, 4));
  EXPECT_THAT(list.parameters[1].shape, IsEmpty());
  EXPECT_EQ(list.parameters[2].tied, "b.weight");
  EXPECT_THAT(list.parameters[2].shape, ElementsAre(3, 4));
  EXPECT_THAT(list.parameters[3].shape, ElementsAre(2));
}

TEST(ParameterList, refuses_what_is_not_a_shape) {
  const auto refused = [](ErrorCode code, const char* said, const char* text) {
    test::expect_error(code, said, [&] { (void)parse_parameter_list(text, "x.json"); });
  };
  refused(ErrorCode::kJson, "is an array, expected an object", "[1]");
  refused(ErrorCode::kJson, "'a': is an integer, expected a list of sizes", R"({"a": 3})");
  refused(ErrorCode::kShape, "'a': has a size that is not", R"({"a": [1, -1]})");
  refused(ErrorCode::kShape, "'a': has a size that is not", R"({"a": [1.5]})");
  refused(ErrorCode::kShape, "'a': has more than 2^63 - 1", R"({"a": [4294967296, 4294967296]})");
  refused(ErrorCode::kKey, "'a': is tied to 'b', which has no shape before it",
          R"({"a": "b", "b": [1]})");
  refused(ErrorCode::kKey, "'c': is tied to 'b'", R"({"a": [1], "b": "a", "c": "b"})");
  refused(ErrorCode::kEmpty, "names no parameter", "{}");
  refused(ErrorCode::kJson, "", R"({"a": [1], "a": [1]})");
}

}  // namespace
}  // namespace fsdp::formats::flat
