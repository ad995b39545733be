// SPDX-License-Identifier: Apache-2.0
#include "tools/text/value_text.h"

#include <cmath>

#include <gtest/gtest.h>

namespace fsdp::cli {
namespace {

using formats::Value;

TEST(ValueText, reads_as_python_repr) {
  struct Case {
    Value value;
    std::string text;
    std::string type;
  };
  for (const Case& c : std::vector<Case>{
           {Value(), "None", "NoneType"},
           {Value::boolean(true), "True", "bool"},
           {Value::integer(-3), "-3", "int"},
           {Value::floating(1), "1.0", "float"},
           {Value::floating(1e-3), "0.001", "float"},
           {Value::floating(1e300), "1e+300", "float"},
           {Value::floating(NAN), "nan", "float"},
           {Value::floating(-INFINITY), "-inf", "float"},
           {Value::string("a\nb"), "'a\\x0ab'", "str"},
           {Value::bytes(std::string("\0\xff", 2)), "b'\\x00\\xff'", "bytes"},
           // 2**70 and -(2**70), as Python's int.to_bytes(9, "little", signed=True) has them.
           {Value::big_int(std::string("\0\0\0\0\0\0\0\0\x40", 9)), "1180591620717411303424",
            "int"},
           {Value::big_int(std::string("\0\0\0\0\0\0\0\0\xc0", 9)), "-1180591620717411303424",
            "int"},
           {Value::tuple({Value::integer(1)}), "(1,)", "tuple"},
           {Value::list({Value::integer(1), Value::string("a")}), "[1, 'a']", "list"},
           {Value::dict({{Value::string("k"), Value::list({})}}), "{'k': []}", "dict"},
           {Value::set({Value::integer(1)}), "{1}", "set"},
           {Value::global("torch", "bfloat16"), "torch.bfloat16", "torch.dtype"},
       }) {
    EXPECT_EQ(value_text(c.value, 60), c.text);
    EXPECT_EQ(type_name(c.value), c.type);
  }
}

// Decimal digits of an int take time quadratic in its size: 64 KiB took half a minute.
TEST(ValueText, long_ints_are_hexadecimal) {
  EXPECT_EQ(value_text(Value::big_int(std::string(65536, '\x7f')), 12), "0x7f7f7f7f7f...");
  std::string low(2000, '\0');
  low.back() = '\1';
  EXPECT_EQ(value_text(Value::big_int(low), 5000), "0x1" + std::string(2 * 1999, '0'));
  EXPECT_EQ(value_text(Value::big_int(std::string(1999, '\0') + "\xff"), 5000),
            "-0x1" + std::string(2 * 1999, '0'));
  const std::string decimal = value_text(Value::big_int(std::string(1024, '\x7f')), 5000);
  EXPECT_EQ(decimal.size(), 2466U);
  EXPECT_TRUE(decimal.starts_with("5432"));
}

TEST(ValueText, long_text_is_cut_between_characters) {
  EXPECT_EQ(value_text(Value::list(std::vector<Value>(1000, Value::integer(7))), 10),
            "[7, 7, 7, ...");
  const std::string cut = value_text(Value::string("ééééééééééééééééé"), 10);
  EXPECT_TRUE(cut.ends_with("..."));
  EXPECT_EQ(cut.find('\\'), std::string::npos);
}

TEST(ValueText, json_keeps_what_json_has) {
  const Value value = Value::dict({{Value::string("a"), Value::tuple({Value::integer(1), Value()})},
                                   {Value::integer(3), Value::floating(NAN)}});
  EXPECT_EQ(formats::to_text(value_json(value)), R"({"a":[1,null],"3":"nan"})");
}

TEST(ValueText, json_of_a_shared_graph_that_unfolds_without_end_is_cut) {
  Value value = Value::integer(1);
  for (int i = 0; i < 60; ++i) value = Value::list({value, value});
  EXPECT_LT(formats::to_text(value_json(value)).size(), 1U << 20U);
}

}  // namespace
}  // namespace fsdp::cli
