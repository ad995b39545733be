// SPDX-License-Identifier: Apache-2.0
#include "formats/state/content/value_compare.h"

#include <limits>

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

Value text(const char* word) {
  return Value::string(word);
}

Value ordered(std::vector<Value::Entry> entries) {
  ObjectData data;
  data.callable = Value::global("collections", "OrderedDict", 2);
  data.args = Value::tuple({});
  data.dict_items = std::move(entries);
  return Value::object(std::move(data));
}

// Returns an empty text if they are the same, else the place of the difference.
std::string difference(const Value& a, const Value& b) {
  const ValueComparison found = compare_values(a, b);
  const ValueComparison back = compare_values(b, a);
  EXPECT_EQ(found.same, back.same);
  if (found.same) return {};
  return found.where.empty() ? "top" : found.where;
}

TEST(CompareValues, types_count) {
  const Value one = Value::integer(1);
  EXPECT_EQ(difference(one, Value::integer(1)), "");
  EXPECT_EQ(difference(one, Value::integer(2)), "top");
  EXPECT_EQ(difference(one, Value::floating(1)), "top");
  EXPECT_EQ(difference(one, Value::boolean(true)), "top");
  EXPECT_EQ(difference(Value::list({one}), Value::tuple({one})), "top");
  EXPECT_EQ(difference(text("a"), Value::bytes("a")), "top");
  EXPECT_EQ(difference({}, {}), "");
  EXPECT_EQ(difference(Value::global("a", "b"), Value::global("a", "c")), "top");
}

TEST(CompareValues, floats_are_the_same_by_their_bits_and_nan_is_nan) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(difference(Value::floating(nan), Value::floating(-nan)), "");
  EXPECT_EQ(difference(Value::floating(0.0), Value::floating(-0.0)), "top");
  EXPECT_EQ(difference(Value::floating(nan), Value::floating(0)), "top");
}

TEST(CompareValues, the_way_to_the_difference_is_told) {
  const auto group = [](double beta) {
    return Value::dict({{text("lr"), Value::floating(1)},
                        {text("betas"), Value::tuple({Value::floating(beta), Value::floating(2)})},
                        {Value::integer(3), Value::list({})}});
  };
  EXPECT_EQ(difference(Value::list({group(1)}), Value::list({group(1)})), "");
  EXPECT_EQ(difference(Value::list({group(1)}), Value::list({group(9)})), "[0]['betas'][0]");
  EXPECT_EQ(difference(Value::list({group(1)}), Value::list({})), "top");
}

TEST(CompareValues, mappings_have_no_order_and_no_kind) {
  const Value one = Value::integer(1);
  const Value two = Value::integer(2);
  EXPECT_EQ(difference(Value::dict({{text("a"), one}, {one, two}}),
                       ordered({{one, two}, {text("a"), one}})),
            "");
  EXPECT_EQ(difference(Value::dict({{text("a"), one}}), Value::dict({{text("b"), one}})), "['a']");
  EXPECT_EQ(difference(Value::dict({}), Value::dict({{text("b"), one}})), "top");
  EXPECT_EQ(difference(Value::dict({}), Value::list({})), "top");
}

TEST(CompareValues, sets_have_no_order) {
  const auto set = [](const char* a, const char* b) { return Value::set({text(a), text(b)}); };
  EXPECT_EQ(difference(set("a", "b"), set("b", "a")), "");
  EXPECT_EQ(difference(set("a", "b"), set("a", "c")), "top");
}

TEST(CompareValues, storages_are_left_to_the_caller) {
  const auto storage = [](const char* key, std::uint64_t numel) {
    StorageRef ref;
    ref.key = key;
    ref.dtype = DType::kFloat32;
    ref.numel = numel;
    return Value::list({Value::storage(ref)});
  };
  const ValueComparison found = compare_values(storage("0", 4), storage("17", 4));
  EXPECT_TRUE(found.same);
  ASSERT_EQ(found.storages.size(), 1U);
  EXPECT_EQ(found.storages[0].second.key, "17");
  EXPECT_EQ(difference(storage("0", 4), storage("0", 5)), "[0]");
}

TEST(CompareValues, shared_parts_are_compared_once) {
  const auto doubled = [] {
    Value value = Value::list({Value::integer(1)});
    for (int i = 0; i < 200; ++i) value = Value::list({value, value});  // 2^200 leaves
    return value;
  };
  EXPECT_TRUE(compare_values(doubled(), doubled()).same);
}

TEST(CompareValues, calls_are_the_same_with_the_same_arguments_and_state) {
  const auto call = [](const char* name, std::int64_t argument, Value state) {
    ObjectData data;
    data.callable = Value::global("m", name);
    data.args = Value::tuple({Value::integer(argument)});
    data.built = !state.is_none();
    data.state = std::move(state);
    return Value::object(std::move(data));
  };
  EXPECT_EQ(difference(call("f", 1, {}), call("f", 1, {})), "");
  EXPECT_EQ(difference(call("f", 1, {}), call("g", 1, {})), "top");
  EXPECT_EQ(difference(call("f", 1, {}), call("f", 2, {})), "(...)[0]");
  EXPECT_EQ(difference(call("f", 1, text("a")), call("f", 1, text("b"))), ".state");
}

}  // namespace
}  // namespace fsdp::formats
