// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/contents/slice.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fsdp::cli {
namespace {

using Shape = std::vector<std::int64_t>;

TEST(Slice, ranges_and_indices_are_those_of_python) {
  const Shape shape = {10, 4, 6};
  struct Case {
    const char* text;
    Shape first;
    Shape result;
  };
  const std::vector<Case> cases = {
      {":", {0, 0, 0}, {10, 4, 6}},     {"0:4", {0, 0, 0}, {4, 4, 6}},
      {"3", {3, 0, 0}, {4, 6}},         {"-1", {9, 0, 0}, {4, 6}},
      {"..., -2", {0, 0, 4}, {10, 4}},  {"2:,...,1::2", {2, 0, 1}, {8, 4, 3}},
      {"-3:-1", {7, 0, 0}, {2, 4, 6}},  {"5:2", {5, 0, 0}, {0, 4, 6}},
      {"8:100:3,1,2", {8, 1, 2}, {1}},  {"::3", {0, 0, 0}, {4, 4, 6}},
      {"...", {0, 0, 0}, {10, 4, 6}},   {"1,2,3", {1, 2, 3}, {}},
      {"-100:2", {0, 0, 0}, {2, 4, 6}}, {"1,", {1, 0, 0}, {4, 6}},
      {"0,0,0,...", {0, 0, 0}, {}},     {"100:", {10, 0, 0}, {0, 4, 6}},
  };
  for (const Case& c : cases) {
    const Slice slice = parse_slice(c.text, shape);
    EXPECT_EQ(slice.shape(), c.result) << c.text;
    EXPECT_EQ(slice.box().offset, c.first) << c.text;
  }
  EXPECT_EQ(parse_slice("::3", shape).box().size, (Shape{10, 4, 6}));
  EXPECT_EQ(parse_slice("::4", shape).box().size, (Shape{9, 4, 6}));
  EXPECT_TRUE(parse_slice("::4", shape).has_steps());
  EXPECT_FALSE(parse_slice("::20", shape).has_steps());
  EXPECT_EQ(parse_slice("...", Shape{}).shape(), Shape{});
}

TEST(Slice, what_is_wrong_is_named) {
  const Shape shape = {10, 4};
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"10", "'10' is out of range: dimension 0 has size 10"},
      {"0,-5", "'-5' is out of range: dimension 1 has size 4"},
      {"::-1", "'::-1' has a step that is not positive"},
      {"::0", "'::0' has a step that is not positive"},
      {"1,2,3", "'1,2,3' has 3 indices, but the tensor has 2 dimensions"},
      {"...,...", "'...,...' has more than one ellipsis"},
      {"a", "'a' is not an index, range a:b:c or ellipsis"},
      {"1:2:3:4", "'1:2:3:4' has more than three parts"},
      {"", "'' has an empty index"},
      {",1", "has an empty index"},
      {"99999999999999999999", "is not an index"},
      {"1.5", "is not an index"},
  };
  for (const auto& [text, message] : cases)
    test::expect_error(ErrorCode::kUsage, message, [&] { parse_slice(text, shape); });
  test::expect_error(ErrorCode::kUsage, "out of range: dimension 0 has size 0",
                     [] { parse_slice("0", Shape{0}); });
}

}  // namespace
}  // namespace fsdp::cli
