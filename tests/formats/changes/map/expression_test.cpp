// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/map/expression.h"

#include <limits>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fsdp::formats::map {
namespace {

using test::expect_error;

std::int64_t parameter(const std::string& name) {
  if (name == "heads") return 6;
  if (name == "dim") return 4;
  throw Error(ErrorCode::kUsage, "no " + name);
}

std::int64_t value(const char* text) {
  return Expression(std::string(text)).value(parameter);
}

TEST(Expression, multiplies_before_it_adds_and_goes_from_left_to_right) {
  EXPECT_EQ(value("heads * dim + 2"), 26);
  EXPECT_EQ(value("2 + heads * dim"), 26);
  EXPECT_EQ(value("heads * (dim + 2)"), 36);
  EXPECT_EQ(value("20 - 5 - 3"), 12);
  EXPECT_EQ(value("24 / heads / 2"), 2);
  EXPECT_EQ(value("heads/2*dim"), 12);
  EXPECT_EQ(value(" -1 "), -1);
  EXPECT_EQ(Expression(7).value(parameter), 7);
  EXPECT_EQ(Expression(std::string("heads * dim")).names(),
            (std::set<std::string>{"dim", "heads"}));
}

TEST(Expression, divisions_have_no_rest_and_numbers_64_bits) {
  expect_error(ErrorCode::kShape, "6 is not divisible by 4", [] { value("heads / dim"); });
  expect_error(ErrorCode::kShape, "6 is not divisible by 0", [] { value("heads / 0"); });
  EXPECT_EQ(value("9223372036854775807"), std::numeric_limits<std::int64_t>::max());
  expect_error(ErrorCode::kOverflow, "64 bits", [] { value("9223372036854775807 + 1"); });
  expect_error(ErrorCode::kOverflow, "64 bits", [] { value("0 - 9223372036854775807 - 2"); });
  expect_error(ErrorCode::kOverflow, "64 bits", [] { value("4294967296 * 4294967296"); });
  expect_error(ErrorCode::kUsage, "no other", [] { value("other"); });
}

TEST(Expression, what_is_no_expression_is_refused) {
  for (const char* text : {"", " ", "1 +", "* 2", "(1", "1)", "1 2", "a b", "1 % 2", "--1",
                           "9223372036854775808", "1.5"})
    expect_error(ErrorCode::kUsage, "expression '", [text] { value(text); });
  expect_error(ErrorCode::kUsage, "too deeply",
               [] { Expression(std::string(40, '(') + "1" + std::string(40, ')')); });
  expect_error(ErrorCode::kUsage, "at most 256", [] { Expression(std::string(257, '1')); });
}

}  // namespace
}  // namespace fsdp::formats::map
