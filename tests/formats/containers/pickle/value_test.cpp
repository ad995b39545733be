// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/pickle/value.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

using ::testing::ElementsAre;

TEST(PickleValue, each_kind_gives_its_content_and_no_other) {
  EXPECT_TRUE(Value().is_none());
  EXPECT_EQ(Value::boolean(true).as_bool(), true);
  EXPECT_EQ(Value::boolean(true).as_int(), std::nullopt);
  EXPECT_EQ(Value::integer(-7).as_int(), -7);
  EXPECT_EQ(Value::integer(1).as_float(), std::nullopt);
  EXPECT_EQ(Value::floating(-0.5).as_float(), -0.5);
  EXPECT_EQ(*Value::string("a").as_string(), "a");
  EXPECT_EQ(Value::string("a").as_bytes(), nullptr);
  EXPECT_EQ(*Value::bytes("a").as_bytes(), "a");
  EXPECT_EQ(Value::bytes("a").as_string(), nullptr);
  EXPECT_EQ(*Value::byte_array("b").as_bytes(), "b");
  EXPECT_EQ(*Value::big_int("c").as_bytes(), "c");
  const Value opaque = Value::opaque(3, 1ULL << 60U);
  EXPECT_EQ(opaque.kind(), ValueKind::kOpaque);
  EXPECT_EQ(opaque.opaque_tag(), 3U);
  EXPECT_EQ(opaque.opaque_payload(), 1ULL << 60U);
  const Value global = Value::global("torch", "float32", 12);
  EXPECT_EQ(global.as_global()->dotted(), "torch.float32");
  EXPECT_EQ(global.global_tag(), 12);
  EXPECT_EQ(Value::global("a", "b").global_tag(), -1);
  EXPECT_EQ(Value::integer(5).global_tag(), -1);
  EXPECT_EQ(Value::storage({.key = "0", .dtype = DType::kInt8}).as_storage()->key, "0");
  EXPECT_EQ(Value::string("a").as_object(), nullptr);
}

TEST(PickleValue, kinds_have_the_names_that_python_gives_them) {
  const std::vector<std::pair<Value, std::string_view>> cases = {
      {Value(), "None"},
      {Value::boolean(true), "bool"},
      {Value::integer(1), "int"},
      {Value::floating(1), "float"},
      {Value::opaque(1, 1), "record"},
      {Value::string(""), "str"},
      {Value::bytes(""), "bytes"},
      {Value::byte_array(""), "bytearray"},
      {Value::big_int(""), "big int"},
      {Value::list({}), "list"},
      {Value::tuple({}), "tuple"},
      {Value::dict({}), "dict"},
      {Value::set({}), "set"},
      {Value::frozen_set({}), "frozenset"},
      {Value::global("a", "b"), "global"},
      {Value::object({}), "object"},
      {Value::storage({.key = "0", .dtype = DType::kInt8}), "storage"},
  };
  for (const auto& [value, name] : cases) EXPECT_EQ(kind_name(value.kind()), name);
}

TEST(PickleValue, containers_give_their_items_in_order) {
  const auto numbers = [](const Value& value) {
    std::vector<std::int64_t> result;
    for (const Value& item : value.items()) result.push_back(*item.as_int());
    return result;
  };
  const std::vector<Value> items = {Value::integer(3), Value::integer(1), Value::integer(2)};
  EXPECT_THAT(numbers(Value::list(items)), ElementsAre(3, 1, 2));
  EXPECT_THAT(numbers(Value::tuple(items)), ElementsAre(3, 1, 2));
  EXPECT_THAT(numbers(Value::set(items)), ElementsAre(3, 1, 2));
  EXPECT_THAT(numbers(Value::frozen_set(items)), ElementsAre(3, 1, 2));
  EXPECT_EQ(Value::set(items).kind(), ValueKind::kSet);
  EXPECT_TRUE(Value::tuple({}).items().empty());
  EXPECT_TRUE(Value::integer(1).items().empty());
  EXPECT_TRUE(Value::list(items).entries().empty());
}

TEST(PickleValue, copies_share_the_node) {
  const Value list = Value::list({Value::integer(1)});
  const Value copy = list;
  EXPECT_EQ(copy.identity(), list.identity());
  EXPECT_NE(Value::list({}).identity(), list.identity());
  EXPECT_EQ(Value::integer(1).identity(), nullptr);
  EXPECT_EQ(Value::tuple({}).identity(), nullptr);
  Value assigned;
  assigned = copy;
  Value moved = std::move(assigned);
  EXPECT_EQ(moved.identity(), list.identity());
  EXPECT_TRUE(assigned.is_none());  // NOLINT(bugprone-use-after-move): moved from is None
  const Value& same = moved;
  moved = same;
  EXPECT_EQ(moved.identity(), list.identity());
}

TEST(PickleValue, dict_finds_string_keys_small_and_large) {
  for (const std::size_t size :
       {std::size_t{3}, std::size_t{16}, std::size_t{17}, std::size_t{5000}}) {
    std::vector<Value::Entry> entries = {{Value::integer(0), Value::string("by number")}};
    for (std::size_t i = 0; i < size; ++i) {
      entries.emplace_back(Value::string("key" + std::to_string(i)),
                           Value::integer(static_cast<std::int64_t>(i)));
    }
    // Held by a list, it no longer changes: then it is indexed.
    const Value list = Value::list({Value::dict(entries)});
    for (const Value& dict : {Value::dict(entries), list.items()[0]}) {
      for (std::size_t i = 0; i < size; ++i) {
        const Value* const found = dict.find("key" + std::to_string(i));
        ASSERT_NE(found, nullptr) << i;
        EXPECT_EQ(found->as_int(), static_cast<std::int64_t>(i));
      }
      EXPECT_EQ(dict.find("key"), nullptr);
      EXPECT_EQ(dict.find(""), nullptr);
    }
  }
  EXPECT_EQ(Value::dict({}).find("a"), nullptr);
  EXPECT_EQ(Value::list({}).find("a"), nullptr);
}

TEST(PickleValue, depth_counts_levels) {
  EXPECT_EQ(Value::integer(1).depth(), 0U);
  EXPECT_EQ(Value::list({}).depth(), 0U);
  EXPECT_EQ(Value::tuple({Value::integer(1)}).depth(), 1U);
  EXPECT_EQ(Value::tuple({Value::tuple({}), Value::list({Value::string("a")})}).depth(), 2U);
  EXPECT_EQ(Value::dict({{Value(), Value::list({Value()})}}).depth(), 2U);
  ObjectData data;
  data.callable = Value::global("a", "b");
  data.args = Value::tuple({});
  data.dict_items = {{Value(), Value::set({Value()})}};
  EXPECT_EQ(Value::object(std::move(data)).depth(), 2U);
}

TEST(PickleValue, a_million_levels_are_destroyed_without_recursion) {
  constexpr int kLevels = 1'000'000;
  Value tuples;
  Value lists;
  Value objects = Value::tuple({});
  for (int i = 0; i < kLevels; ++i) {
    tuples = Value::tuple({std::move(tuples)});
    lists = Value::list({std::move(lists)});
    ObjectData data;
    data.args = Value::tuple({std::move(objects)});
    objects = Value::object(std::move(data));
  }
  EXPECT_EQ(tuples.depth(), 1'000'000U);
  EXPECT_EQ(lists.depth(), 1'000'000U);
}

TEST(PickleValue, a_graph_that_doubles_at_each_level_is_as_large_as_its_nodes) {
  Value value = Value::tuple({Value::integer(1)});
  for (int i = 0; i < 100; ++i) value = Value::tuple({value, value});
  EXPECT_EQ(value.depth(), 101U);
}

TEST(PickleValue, calls_are_recognized_by_their_name) {
  ObjectData data;
  data.callable = Value::global("torch", "Size");
  data.args = Value::tuple({});
  const Value object = Value::object(data);
  EXPECT_TRUE(is_call_of(object, "torch", "Size"));
  EXPECT_FALSE(is_call_of(object, "torch", "device"));
  EXPECT_FALSE(is_call_of(object, "numpy", "Size"));
  EXPECT_FALSE(is_call_of(Value::global("torch", "Size"), "torch", "Size"));
}

// callable(*args) with entries set in it.
Value call(const char* name, std::vector<Value> args, std::vector<Value::Entry> entries) {
  ObjectData data;
  data.callable = Value::global("collections", name);
  data.args = Value::tuple(std::move(args));
  data.dict_items = std::move(entries);
  return Value::object(std::move(data));
}

TEST(PickleValue, mappings_of_collections_give_their_entries) {
  const std::vector<Value::Entry> entries = {{Value::string("a"), Value::integer(1)}};
  const Value dict = Value::dict(entries);
  EXPECT_EQ(mapping_entries(dict)->size(), 1U);
  EXPECT_EQ(mapping_entries(call("OrderedDict", {}, entries))->size(), 1U);
  EXPECT_EQ(mapping_entries(call("OrderedDict", {}, {}))->size(), 0U);
  EXPECT_EQ(
      mapping_entries(call("defaultdict", {Value::global("builtins", "list")}, entries))->size(),
      1U);
  EXPECT_EQ(mapping_entries(call("Counter", {dict}, {}))->size(), 1U);
  EXPECT_EQ(mapping_entries(call("Counter", {}, entries))->size(), 1U);
  EXPECT_EQ(mapping_entries(call("OrderedDict", {Value::list({})}, {})), std::nullopt);
  EXPECT_EQ(mapping_entries(call("Counter", {Value::list({})}, {})), std::nullopt);
  EXPECT_EQ(mapping_entries(call("deque", {}, entries)), std::nullopt);
  EXPECT_EQ(mapping_entries(Value::list({})), std::nullopt);
}

}  // namespace
}  // namespace fsdp::formats
