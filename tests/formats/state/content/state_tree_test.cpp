// SPDX-License-Identifier: Apache-2.0
#include "formats/state/content/state_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/state/content/content.h"
#include "formats/state/content/tensor_value.h"
#include "tests/support/dcp_folder.h"
#include "tests/support/expect_error.h"

namespace fsdp::formats {
namespace {

using test::expect_error;
using testing::ElementsAre;

Value text(const char* content) {
  return Value::string(content);
}
Value number(std::int64_t value) {
  return Value::integer(value);
}
Value tensor() {
  return make_dense_tensor(DType::kFloat32, {1},
                           {.key = "0", .dtype = DType::kFloat32, .numel = 1});
}

std::vector<std::string> keys_of(const Value& root) {
  std::vector<std::string> keys;
  for (const Leaf& leaf : leaves_of(root)) keys.push_back(leaf.key);
  return keys;
}

// The rule by which PyTorch 2.4 and later flatten; an empty mapping is a leaf here, while PyTorch
// leaves no trace of it.
TEST(StateTree, mappings_are_taken_apart_and_lists_that_hold_tensors_or_mappings) {
  const Value root = Value::dict(
      {{text("l"), Value::list({tensor(), number(5)})},
       {text("lt"), Value::list({number(1), number(2)})},
       {text("ld"), Value::list({Value::dict({{text("lr"), Value::floating(0.1)}})})},
       {text("t"), Value::tuple({number(1), number(2)})},
       {number(3), text("x")},
       {text("k.y"), number(1)},
       {text("e"), Value::dict({})},
       {text("le"), Value::list({Value::dict({}), Value::list({Value::dict({})})})},
       {text("len"), Value::list({Value::dict({}), number(4)})},
       {text("lde"), Value::list({Value::dict({}), Value::dict({{text("a"), number(1)}})})}});
  EXPECT_THAT(keys_of(root), ElementsAre("l.0", "l.1", "lt", "ld.0.lr", "t", "3", "k.y", "e", "le",
                                         "len.0", "len.1", "lde.0", "lde.1.a"));
  EXPECT_EQ(leaves_of(root)[3].path, (KeyPath{"ld", std::int64_t{0}, "lr"}));
  EXPECT_THAT(keys_of(number(7)), ElementsAre(""));
}

TEST(StateTree, keys_read_as_python_prints_them) {
  const auto key = [](Value value) {
    return keys_of(Value::dict({{std::move(value), Value()}}))[0];
  };
  EXPECT_EQ(key(number(-3)), "-3");
  EXPECT_EQ(key(Value::boolean(true)), "True");
  EXPECT_EQ(key(Value()), "None");
  EXPECT_EQ(key(Value::floating(0.5)), "0.5");
  EXPECT_EQ(key(Value::bytes("a\n")), "b'a\\n'");
  EXPECT_EQ(key(Value::tuple({number(1), text("a")})), "(1, 'a')");
}

// [[...], [...]] of one list in itself 60 levels deep, which nothing can visit part by part.
Value doubled(Value value, int levels, const char* key = nullptr) {
  for (int i = 0; i < levels; ++i) {
    value = key == nullptr ? Value::list({value, value})
                           : Value::dict({{text(key), value}, {text("b"), value}});
  }
  return value;
}

TEST(StateTree, shared_parts_do_not_unfold_without_bound) {  // P21
  EXPECT_THAT(keys_of(Value::dict({{text("a"), doubled(number(1), 60)}})), ElementsAre("a"));
  EXPECT_EQ(pruned(Value::dict({{text("a"), doubled(number(1), 60)}}),
                   [](const std::string&) { return true; })
                .entries()
                .size(),
            1U);
  expect_error(ErrorCode::kLimitNodes, "unfolds into more than",
               [] { leaves_of(doubled(number(1), 60, "a")); });
  Value key = number(1);
  for (int i = 0; i < 60; ++i) key = Value::tuple({key, key});
  expect_error(ErrorCode::kName, "more than 65536 bytes", [&] {
    leaves_of(Value::dict({{key, number(1)}}));
  });
}

TEST(StateTree, keys_have_a_length_that_can_be_shown) {
  const std::string step(1000, 'k');
  Value value = number(1);
  for (int i = 0; i < 60; ++i) value = Value::dict({{Value::string(step), value}});
  EXPECT_EQ(keys_of(value)[0].size(), 60 * 1001U - 1);
  for (int i = 0; i < 10; ++i) value = Value::dict({{Value::string(step), value}});
  expect_error(ErrorCode::kName, "more than 65536 bytes", [&] { leaves_of(value); });
}

TEST(StateTree, pruning_removes_what_it_empties) {
  const Value root =
      Value::dict({{text("a"), Value::dict({{text("x"), number(1)}, {text("y"), number(2)}})},
                   {text("b"), Value::dict({{text("x"), number(3)}})},
                   {text("l"), Value::list({tensor(), number(4)})}});
  const auto keeping = [&](std::vector<std::string> keys) {
    return keys_of(pruned(root, [&](const std::string& key) {
      return std::find(keys.begin(), keys.end(), key) != keys.end();
    }));
  };
  EXPECT_THAT(keeping({"a.y", "b.x"}), ElementsAre("a.y", "b.x"));
  EXPECT_THAT(keeping({"b.x"}), ElementsAre("b.x"));
  EXPECT_THAT(keeping({"a.x", "a.y", "b.x", "l.0", "l.1"}),
              ElementsAre("a.x", "a.y", "b.x", "l.0", "l.1"));
  EXPECT_EQ(pruned(root, [](const std::string&) { return false; }).entries().size(), 0U);
}

// A folder of values v0, v1, ... at the places that these paths (opcodes of steps) give.
Value nested(const std::vector<std::vector<std::string>>& paths) {
  test::DcpFolder folder;
  std::vector<std::pair<std::string, std::vector<std::string>>> plan;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const std::string key = "v" + std::to_string(i);
    folder.add_value(key, test::integer(static_cast<std::int64_t>(i)));
    plan.emplace_back(key, paths[i]);
  }
  folder.metadata.planner_data = test::planner_data(plan);
  const auto checkpoint = folder.open();
  return with_values(*checkpoint, content_of(*checkpoint));
}

const std::string kA = test::text("a");
const std::string kB = test::text("b");

TEST(StateTree, paths_become_containers) {
  const Value root = nested({{kA, kB}, {kA, test::text("l"), test::integer(2)}, {kB}});
  ASSERT_NE(root.find("a"), nullptr);
  EXPECT_EQ(root.find("a")->find("b")->as_int(), 0);
  const auto list = root.find("a")->find("l")->items();
  ASSERT_EQ(list.size(), 3U);
  EXPECT_TRUE(list[0].is_none() && list[1].is_none());
  EXPECT_EQ(list[2].as_int(), 1);
  EXPECT_EQ(root.find("b")->as_int(), 2);
}

TEST(StateTree, paths_that_contradict_each_other_are_refused) {
  const auto refused = [](const std::vector<std::vector<std::string>>& paths) {
    expect_error(ErrorCode::kKey, "'v1': its path conflicts with that of another key",
                 [&] { nested(paths); });
  };
  refused({{kA}, {kA}});
  refused({{kA}, {kA, kB}});
  refused({{kA, kB}, {kA}});
  refused({{kA, kB}, {kA, test::integer(0)}});
  refused({{kA, test::integer(0)}, {kA, kB}});
  expect_error(ErrorCode::kKey, "'v0': its path conflicts with",
               [] { nested({{test::integer(0)}}); });
}

TEST(StateTree, lists_are_not_padded_without_bound) {
  expect_error(ErrorCode::kLimitNodes, "padded with more than", [] {
    nested({{kA, test::integer(9'999'999)}});
  });
  expect_error(ErrorCode::kLimitNodes, "padded with more than", [] {
    nested({{kA, test::integer(INT64_MAX)}});
  });
  expect_error(ErrorCode::kLimitNodes, "padded with more than", [] {
    nested({{kA, test::integer(600'000)}, {kB, test::integer(600'000)}});
  });
}

}  // namespace
}  // namespace fsdp::formats
