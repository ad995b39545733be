// SPDX-License-Identifier: Apache-2.0
#include "formats/state/rewrite/parameter_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/state/content/tensor_value.h"
#include "tests/support/expect_error.h"

namespace fsdp::formats {
namespace {

using test::expect_error;
using testing::ElementsAre;
using testing::IsEmpty;
using Shape = std::vector<std::int64_t>;
using Members = std::vector<std::pair<std::string, Value>>;
using Keys = std::map<std::string, std::string>;

Value dict(const Members& members) {
  std::vector<Value::Entry> entries;
  for (const auto& [name, value] : members) entries.emplace_back(Value::string(name), value);
  return Value::dict(std::move(entries));
}
// Each tensor has its own storage, unless `key` names one.
Value tensor(const Shape& shape, DType dtype = DType::kFloat32, const std::string& key = "") {
  static int next = 0;
  std::uint64_t numel = 1;
  for (const std::int64_t size : shape) numel *= static_cast<std::uint64_t>(size);
  return make_dense_tensor(
      dtype, shape,
      {.key = key.empty() ? std::to_string(++next) : key, .dtype = dtype, .numel = numel});
}
Value adam(const Shape& shape) {
  return dict({{"step", tensor({})}, {"exp_avg", tensor(shape)}});
}
Value group(const std::vector<Value>& params) {
  return dict({{"lr", Value::floating(0.1)}, {"params", Value::list(params)}});
}
Value id(std::int64_t number) {
  return Value::integer(number);
}
Value text(const char* name) {
  return Value::string(name);
}

OptimizerState read(const Value& part) {
  return read_optimizer(
      part, false, [](const Value& value) { return value; },
      [](const Value&, const Value&) { return false; });
}
// Ids in order, in groups, with the shape of each state; absent ids have no state.
OptimizerState by_ids(const std::vector<std::vector<std::int64_t>>& groups,
                      const std::map<std::int64_t, Shape>& shapes) {
  std::vector<Value> lists;
  for (const auto& ids : groups) {
    std::vector<Value> params;
    for (const std::int64_t number : ids) params.push_back(id(number));
    lists.push_back(group(params));
  }
  std::vector<Value::Entry> state;
  for (const auto& [number, shape] : shapes) state.emplace_back(id(number), adam(shape));
  return read(Value::dict({{text("state"), Value::dict(std::move(state))},
                           {text("param_groups"), Value::list(std::move(lists))}}));
}
OptimizerState by_names(const std::vector<std::vector<const char*>>& groups) {
  std::vector<Value> lists;
  for (const auto& names : groups) {
    std::vector<Value> params;
    for (const char* name : names) params.push_back(text(name));
    lists.push_back(group(params));
  }
  return read(dict({{"state", dict({})}, {"param_groups", Value::list(std::move(lists))}}));
}
ParameterOrder order(const std::vector<std::pair<std::string, Shape>>& parameters,
                     bool certain = true) {
  ParameterOrder out;
  out.origin = "m.pt";
  out.certain = certain;
  for (const auto& [name, shape] : parameters) out.parameters.push_back({name, shape});
  return out;
}
ParameterOrder list(const std::vector<std::string>& names) {
  ParameterOrder out;
  out.origin = "n.txt";
  out.for_ids = true;
  for (const std::string& name : names) out.parameters.push_back({name, std::nullopt});
  return out;
}

TEST(OrderOfModel, buffers_and_further_names_of_tied_parameters_are_left_out) {
  const Value model = dict({{"emb", tensor({4, 2}, DType::kFloat32, "tied")},
                            {"norm.weight", tensor({2})},
                            {"norm.running_mean", tensor({2})},
                            {"norm.running_var", tensor({2})},
                            {"norm.num_batches_tracked", tensor({}, DType::kInt64)},
                            {"mask", tensor({2}, DType::kBool)},
                            {"phase", tensor({2}, DType::kComplex64)},
                            {"_extra_state", Value()},
                            {"head", tensor({4, 2}, DType::kFloat32, "tied")}});
  const ParameterOrder order = order_of_model(model, "m", true);
  std::vector<std::string> names;
  for (const ModelParameter& parameter : order.parameters) names.push_back(parameter.name);
  EXPECT_THAT(names, ElementsAre("emb", "norm.weight", "phase"));
  ASSERT_EQ(order.tied.size(), 1U);
  EXPECT_EQ(order.tied[0].name, "head");
}

TEST(OrderOfModel, is_certain_where_names_stand_as_modules_list_them) {
  const auto certain = [](const std::vector<std::string>& names) {
    Members members;
    for (const std::string& name : names) members.emplace_back(name, tensor({1}));
    return order_of_model(dict(members), "m", true).certain;
  };
  EXPECT_TRUE(certain({"scale", "a.weight", "a.bias", "a.norm.weight", "b.2.w", "b.10.w", "head"}));
  EXPECT_FALSE(certain({"a.bias", "a.weight"}));
  EXPECT_FALSE(certain({"a.weight", "b.weight", "a.bias"}));
  EXPECT_FALSE(certain({"l.0.w", "l.10.w", "l.2.w"}));
  EXPECT_FALSE(order_of_model(dict({{"a", tensor({1})}}), "m", false).certain);
}

TEST(NamesOfIds, one_group_has_the_order_of_the_model) {
  const auto optimizer = by_ids({{0, 1}}, {{0, {2, 3}}, {1, {2}}});
  EXPECT_EQ(names_of_ids(optimizer, order({{"w", {2, 3}}, {"b", {2}}})),
            (Keys{{"0", "w"}, {"1", "b"}}));
}

TEST(NamesOfIds, shapes_are_checked) {
  const auto optimizer = by_ids({{0, 1}}, {{0, {2, 3}}, {1, {2}}});
  expect_error(ErrorCode::kShape, "parameter 0 has shape [2, 3], 'b' has [2] in m.pt", [&] {
    names_of_ids(optimizer, order({{"b", {2}}, {"w", {2, 3}}}));
  });
  expect_error(ErrorCode::kKey, "has 2 parameters, m.pt 1", [&] {
    names_of_ids(optimizer, order({{"w", {2, 3}}}));
  });
  expect_error(ErrorCode::kKey, "their names are unknown",
               [&] { names_of_ids(optimizer, std::nullopt); });
}

TEST(NamesOfIds, groups_are_laid_into_the_model_where_shapes_leave_one_way) {
  // Weights in one group, biases in the other.
  const auto optimizer = by_ids({{0, 1}, {2, 3}}, {{0, {2, 3}}, {1, {4, 2}}, {2, {2}}, {3, {4}}});
  EXPECT_EQ(names_of_ids(optimizer,
                         order({{"a.w", {2, 3}}, {"a.b", {2}}, {"c.w", {4, 2}}, {"c.b", {4}}})),
            (Keys{{"0", "a.w"}, {"1", "c.w"}, {"2", "a.b"}, {"3", "c.b"}}));
}

TEST(NamesOfIds, what_fits_the_one_way_leaves_room_for_one_way_of_the_others) {
  // The first group alone could be a or c; the second must be (b, c).
  const auto optimizer = by_ids({{0}, {1, 2}}, {{0, {2}}, {1, {3}}, {2, {2}}});
  EXPECT_EQ(names_of_ids(optimizer, order({{"a", {2}}, {"b", {3}}, {"c", {2}}})),
            (Keys{{"0", "a"}, {"1", "b"}, {"2", "c"}}));
}

TEST(NamesOfIds, two_ways_are_refused_with_both_named) {
  const auto optimizer = by_ids({{0}, {1}}, {{0, {2}}, {1, {2}}});
  expect_error(ErrorCode::kRekeyAmbiguous, "parameter 0 may be 'a' or 'b'", [&] {
    names_of_ids(optimizer, order({{"a", {2}}, {"b", {2}}}));
  });
}

TEST(NamesOfIds, frozen_parameters_and_unknown_buffers_are_passed_over_where_shapes_tell) {
  const auto optimizer = by_ids({{0, 1}}, {{0, {3}}, {1, {2}}});
  EXPECT_EQ(names_of_ids(optimizer, order({{"a", {2}}, {"b", {3}}, {"buffer", {7}}, {"c", {2}}})),
            (Keys{{"0", "b"}, {"1", "c"}}));
  expect_error(ErrorCode::kRekeyAmbiguous, "parameter 1 may be 'c' or 'd'", [&] {
    names_of_ids(optimizer, order({{"b", {3}}, {"c", {2}}, {"d", {2}}}));
  });
}

TEST(NamesOfIds, ids_that_do_not_run_on_from_group_to_group_are_the_models) {
  const auto optimizer = by_ids({{0, 2}, {1}}, {{0, {2}}, {1, {2}}, {2, {2}}});
  EXPECT_EQ(names_of_ids(optimizer, order({{"a", {2}}, {"b", {2}}, {"c", {2}}})),
            (Keys{{"0", "a"}, {"1", "b"}, {"2", "c"}}));
  const auto gaps = by_ids({{1, 3}}, {{1, {2}}, {3, {2}}});
  EXPECT_EQ(names_of_ids(gaps, order({{"a", {9}}, {"b", {2}}, {"c", {2}}, {"d", {2}}})),
            (Keys{{"1", "b"}, {"3", "d"}}));
  expect_error(ErrorCode::kKey, "has parameter 3, m.pt has 3 parameters", [&] {
    names_of_ids(gaps, order({{"a", {2}}, {"b", {2}}, {"c", {2}}}));
  });
}

TEST(NamesOfIds, a_list_of_names_is_that_of_the_ids) {
  const auto optimizer = by_ids({{0}, {1}}, {{0, {2}}, {1, {2}}});
  EXPECT_EQ(names_of_ids(optimizer, list({"b", "a"})), (Keys{{"0", "b"}, {"1", "a"}}));
  expect_error(ErrorCode::kKey, "n.txt: 'a' occurs twice", [&] {
    names_of_ids(optimizer, list({"a", "a"}));
  });
}

TEST(NamesOfIds, without_a_certain_order_each_shape_has_to_belong_to_one) {
  const auto optimizer = by_ids({{0, 1}}, {{0, {3}}, {1, {2}}});
  EXPECT_EQ(names_of_ids(optimizer, order({{"a", {2}}, {"b", {3}}}, false)),
            (Keys{{"0", "b"}, {"1", "a"}}));
  expect_error(ErrorCode::kRekeyAmbiguous, "parameter 1 may be 'a' or 'c'", [&] {
    names_of_ids(optimizer, order({{"a", {2}}, {"b", {3}}, {"c", {2}}}, false));
  });
}

TEST(NamesOfIds, param_names_count_before_anything_else) {
  const Value part =
      Value::dict({{text("state"), Value::dict({})},
                   {text("param_groups"),
                    Value::list({dict({{"params", Value::list({id(0), id(1)})},
                                       {"param_names", Value::list({text("x"), text("y")})}})})}});
  EXPECT_EQ(names_of_ids(read(part), order({{"a", {1}}, {"b", {1}}})),
            (Keys{{"0", "x"}, {"1", "y"}}));
}

TEST(IdsOfNames, are_counted_on_from_group_to_group) {
  auto optimizer = by_names({{"b", "a"}, {"c"}});
  EXPECT_EQ(ids_of_names(optimizer, std::nullopt, std::nullopt, true),
            (Keys{{"a", "1"}, {"b", "0"}, {"c", "2"}}));
}

TEST(IdsOfNames, a_sorted_list_has_no_order_unless_the_model_has_the_same) {
  auto optimizer = by_names({{"a", "b"}});
  expect_error(ErrorCode::kRekeyAmbiguous, "parameter 0 may be 'a' or 'b': the names of its group",
               [&] { ids_of_names(optimizer, std::nullopt, std::nullopt, true); });
  expect_error(ErrorCode::kRekeyAmbiguous, "may be 'a' or 'b'", [&] {
    ids_of_names(optimizer, std::nullopt, order({{"b", {1}}, {"a", {1}}}), true);
  });
  EXPECT_EQ(
      ids_of_names(optimizer, std::nullopt, order({{"a", {1}}, {"x", {1}}, {"b", {1}}}), true),
      (Keys{{"a", "0"}, {"b", "1"}}));
}

TEST(IdsOfNames, a_given_order_counts_and_mends_sorted_lists) {
  auto optimizer = by_names({{"a", "b"}, {"d", "c"}});
  EXPECT_EQ(ids_of_names(optimizer, list({"c", "b", "a", "d"}), std::nullopt, true),
            (Keys{{"a", "2"}, {"b", "1"}, {"c", "0"}, {"d", "3"}}));
  EXPECT_THAT(optimizer.groups[0].params, ElementsAre("b", "a"));
  EXPECT_THAT(optimizer.groups[1].params, ElementsAre("d", "c"));
  expect_error(ErrorCode::kKey, "'a' is not a parameter of n.txt", [&] {
    ids_of_names(optimizer, list({"b", "c", "d"}), std::nullopt, true);
  });
  expect_error(ErrorCode::kRekeyAmbiguous, "the order in m.pt may not be the model's", [&] {
    ids_of_names(optimizer, order({{"a", {1}}, {"b", {1}}}, false), std::nullopt, true);
  });
}

TEST(CheckShapes, names_the_parameter_that_the_model_lacks_or_has_otherwise) {
  const auto optimizer = by_ids({{0}}, {{0, {2}}});
  EXPECT_NO_THROW(check_shapes(optimizer, {{"0", "a"}}, order({{"a", {2}}})));
  expect_error(ErrorCode::kKey, "'b' is not a parameter of m.pt", [&] {
    check_shapes(optimizer, {{"0", "b"}}, order({{"a", {2}}}));
  });
  expect_error(ErrorCode::kShape, "has shape [2], 'a' has [3]", [&] {
    check_shapes(optimizer, {{"0", "a"}}, order({{"a", {3}}}));
  });
  // For a parameter of one number, and for factored moments.
  const auto one = [](const Members& kept) {
    return read(Value::dict({{text("state"), Value::dict({{id(0), dict(kept)}})},
                             {text("param_groups"), Value::list({group({id(0)})})}}));
  };
  EXPECT_NO_THROW(check_shapes(one({{"step", tensor({1})}, {"exp_avg", tensor({})}}), {{"0", "a"}},
                               order({{"a", {}}})));
  EXPECT_NO_THROW(check_shapes(one({{"row_var", tensor({4, 1})}, {"exp_avg_sq_col", tensor({3})}}),
                               {{"0", "a"}}, order({{"a", {4, 3}}})));
  expect_error(ErrorCode::kShape, "[4]", [&] {
    check_shapes(one({{"exp_avg", tensor({4})}}), {{"0", "a"}}, order({{"a", {4, 3}}}));
  });
}

TEST(ReadOptimizer, contradictions_are_named) {
  const auto part = [](Value state, Value groups) {
    return Value::dict(
        {{text("state"), std::move(state)}, {text("param_groups"), std::move(groups)}});
  };
  expect_error(ErrorCode::kKey, "parameter '1' is listed twice", [&] {
    read(part(Value::dict({}), Value::list({group({id(1)}), group({id(1)})})));
  });
  expect_error(ErrorCode::kKey, "ids and names", [&] {
    read(part(Value::dict({}), Value::list({group({id(1), text("a")})})));
  });
  expect_error(ErrorCode::kKey, "holds state of '2', which no group of parameters lists", [&] {
    read(part(Value::dict({{id(2), adam({1})}}), Value::list({group({id(1)})})));
  });
  expect_error(ErrorCode::kType, "a parameter is float",
               [&] { read(part(Value::dict({}), Value::list({group({Value::floating(1)})}))); });
  EXPECT_THAT(read(part(Value::dict({}), Value::list({}))).groups, IsEmpty());
}

}  // namespace
}  // namespace fsdp::formats
