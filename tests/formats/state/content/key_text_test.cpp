// SPDX-License-Identifier: Apache-2.0
#include "formats/state/content/key_text.h"

#include <limits>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fsdp::formats {
namespace {

Value call(const char* module, const char* name, std::vector<Value> args) {
  ObjectData object;
  object.callable = Value::global(module, name);
  object.args = Value::tuple(std::move(args));
  return Value::object(std::move(object));
}

// Texts that CPython 3.11 prints for str() of each.
TEST(KeyText, is_what_python_says) {
  const std::pair<Value, const char*> cases[] = {
      {Value::string("it's"), "it's"},
      {Value::integer(-7), "-7"},
      {Value(), "None"},
      {Value::boolean(true), "True"},
      {Value::floating(1.5), "1.5"},
      {Value::floating(3), "3.0"},
      {Value::floating(-0.0), "-0.0"},
      {Value::floating(0.1), "0.1"},
      {Value::floating(1e16), "1e+16"},
      {Value::floating(123456789012345680.0), "1.2345678901234568e+17"},
      {Value::floating(9007199254740993.0), "9007199254740992.0"},
      {Value::floating(1e-5), "1e-05"},
      {Value::floating(0.0001), "0.0001"},
      {Value::floating(std::numeric_limits<double>::infinity()), "inf"},
      {Value::tuple({}), "()"},
      {Value::tuple({Value::integer(1)}), "(1,)"},
      {Value::tuple({Value::string("a"), Value::tuple({Value::string("it's")})}),
       "('a', (\"it's\",))"},
      {Value::tuple({Value::string("both ' and \"")}), "('both \\' and \"',)"},
      {Value::tuple({Value::string("a\n\x01\\")}), "('a\\n\\x01\\\\',)"},
      {Value::frozen_set({}), "frozenset()"},
      {Value::frozen_set({Value::integer(3)}), "frozenset({3})"},
      {call("builtins", "frozenset", {Value::list({Value::string("x")})}), "frozenset({'x'})"},
      {Value::global("torch", "float32"), "torch.float32"},
      {Value::global("torch", "channels_last_format"), "torch.channels_last_format"},
      {Value::global("builtins", "int"), "<class 'int'>"},
      {Value::global("pkg.mod", "Class"), "<class 'pkg.mod.Class'>"},
      {call("torch", "device", {Value::string("cpu")}), "cpu"},
      {call("torch", "device", {Value::string("cuda"), Value::integer(1)}), "cuda:1"},
      {call("torch", "Size", {Value::tuple({Value::integer(2), Value::integer(3)})}),
       "torch.Size([2, 3])"},
  };
  for (const auto& [key, want] : cases) EXPECT_EQ(key_text(key), want);
}

TEST(KeyText, repr_tells_a_text_from_what_reads_the_same) {
  EXPECT_EQ(key_repr(Value::integer(1)), "1");
  EXPECT_EQ(key_repr(Value::string("1")), "'1'");
}

TEST(KeyText, a_key_without_end_is_refused) {
  Value key = Value::string(std::string(40U << 10U, 'x'));
  key = Value::tuple({key, key, key});
  test::expect_error(ErrorCode::kName, "more than 65536 bytes", [&] { key_text(key); });
}

}  // namespace
}  // namespace fsdp::formats
