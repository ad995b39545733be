// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/edit/literal.h"

#include <cmath>

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

TEST(Literal, text_becomes_a_value_of_the_old_type) {
  EXPECT_EQ(value_like(Value::integer(3), " -7 ")->as_int(), -7);
  EXPECT_EQ(value_like(Value::floating(3), "1e-4")->as_float(), 1e-4);
  EXPECT_EQ(value_like(Value::floating(3), "1")->as_float(), 1.0);
  EXPECT_TRUE(std::isnan(*value_like(Value::floating(3), "nan")->as_float()));
  EXPECT_EQ(value_like(Value::floating(3), "-inf")->as_float(), -INFINITY);
  EXPECT_EQ(value_like(Value::boolean(false), "True")->as_bool(), true);
  EXPECT_EQ(value_like(Value::boolean(false), "false")->as_bool(), false);
  EXPECT_EQ(*value_like(Value::string("a"), "3")->as_string(), "3");
  EXPECT_EQ(*value_like(Value::string("a"), " x ")->as_string(), " x ");
  EXPECT_EQ(*value_like(Value::string("a"), "")->as_string(), "");
  EXPECT_TRUE(value_like(Value(), "None")->is_none());
}

TEST(Literal, text_of_another_type_is_none) {
  for (const char* text : {"", "x", "1.5", "0x10", "1_000", "99999999999999999999", "True", "1 2"})
    EXPECT_FALSE(value_like(Value::integer(3), text)) << text;
  for (const char* text : {"", "x", "1e", "True", "None", "1,5", "1e999"})
    EXPECT_FALSE(value_like(Value::floating(3), text)) << text;
  for (const char* text : {"", "1", "0", "TRUE", "None"})
    EXPECT_FALSE(value_like(Value::boolean(true), text)) << text;
  EXPECT_FALSE(value_like(Value(), "0"));
  EXPECT_FALSE(value_like(Value::string("a"), "\xff"));
  EXPECT_FALSE(value_like(Value::dict({}), "{}"));
  EXPECT_FALSE(value_like(Value::bytes("x"), "x"));
}

TEST(Literal, sequences_keep_their_kind_length_and_types) {
  const Value betas = Value::tuple({Value::floating(0.9), Value::floating(0.999)});
  const auto set = value_like(betas, "(0.8, 0.95)");
  ASSERT_TRUE(set);
  EXPECT_EQ(set->kind(), ValueKind::kTuple);
  EXPECT_EQ(set->items()[0].as_float(), 0.8);
  EXPECT_EQ(set->items()[1].as_float(), 0.95);
  for (const char* text :
       {"[0.8, 0.95]", "(0.8,)", "(0.8, 0.9, 1)", "0.8, 0.95", "(a, b)", "(", "", "(0.8 0.95)"})
    EXPECT_FALSE(value_like(betas, text)) << text;
  EXPECT_EQ(value_like(Value::tuple({Value::integer(1)}), "(2,)")->items()[0].as_int(), 2);
  EXPECT_TRUE(value_like(Value::list({}), "[]"));
  const Value nested = Value::list({Value::list({Value::integer(1)})});
  EXPECT_FALSE(value_like(nested, "[[1]]"));
}

TEST(Literal, texts_in_sequences_may_have_quotes) {
  const Value three = Value::list({Value::integer(1), Value::floating(2), Value::string("a")});
  for (const char* text : {"[3, 1.5, 'q']", "[3,1.5,\"q\"]", "[3, 1.5, q]"})
    EXPECT_EQ(*value_like(three, text)->items()[2].as_string(), "q") << text;
  EXPECT_EQ(*value_like(three, "[3, 1.5, 'a, b']")->items()[2].as_string(), "a, b");
  EXPECT_EQ(*value_like(three, "[3, 1.5, 'it\\'s']")->items()[2].as_string(), "it's");
  EXPECT_EQ(*value_like(three, "[3, 1.5, it's]")->items()[2].as_string(), "it's");
  for (const char* text :
       {"[3, 1.5, 'q]", "[3, 1.5, 'q' r]", "[3, 1.5, 'q\\n']", "['3', 1.5, 'q']"})
    EXPECT_FALSE(value_like(three, text)) << text;
}

TEST(Literal, text_says_its_type_by_itself) {
  EXPECT_EQ(value_of_text("3").as_int(), 3);
  EXPECT_EQ(value_of_text("3.0").as_float(), 3.0);
  EXPECT_EQ(value_of_text("True").as_bool(), true);
  EXPECT_TRUE(value_of_text("None").is_none());
  EXPECT_EQ(*value_of_text("true story").as_string(), "true story");
}

}  // namespace
}  // namespace fsdp::formats
