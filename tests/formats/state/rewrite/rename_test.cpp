// SPDX-License-Identifier: Apache-2.0
#include "formats/state/rewrite/rename.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/containers/pickle/writer.h"
#include "formats/state/content/placed_leaves.h"
#include "formats/state/content/state_tree.h"
#include "formats/state/content/tensor_value.h"
#include "tests/support/expect_error.h"
#include "tests/support/state_values.h"

namespace fsdp::formats {
namespace {

using test::dict;
using test::expect_error;
using test::Members;
using test::tensor;
using testing::ElementsAre;
Value names(const std::vector<std::string>& texts) {
  std::vector<Value> items;
  for (const std::string& text : texts) items.push_back(Value::string(text));
  return Value::list(std::move(items));
}
Value ordered(const Members& members, Value state) {
  ObjectData call;
  call.callable = Value::global("collections", "OrderedDict");
  call.args = Value::tuple({});
  call.built = true;
  call.state = std::move(state);
  for (const auto& [name, value] : members)
    call.dict_items.emplace_back(Value::string(name), value);
  return Value::object(std::move(call));
}

// Returns whether both are written as the same bytes.
bool same(const Value& a, const Value& b) {
  return write_pickle(a) == write_pickle(b);
}

Renamed rename(const Value& content, const NameRules& rules) {
  return rename_content(content, rules, [](const Value& value) { return value; });
}
std::vector<std::string> keys(const Value& content, const NameRules& rules) {
  std::vector<std::string> out;
  for (const Leaf& leaf : leaves_of(rename(content, rules).content)) out.push_back(leaf.key);
  return out;
}
NameRules renames(std::vector<NameRule> rules) {
  NameRules out;
  out.renames = std::move(rules);
  return out;
}

Value trained() {
  return dict({{"model", dict({{"a.w", tensor()}, {"b.w", tensor()}})},
               {"optim",
                dict({{"state", dict({{"a.w", dict({{"exp_avg", tensor()}})}})},
                      {"param_groups", Value::list({dict({{"lr", Value::floating(0.1)},
                                                          {"params", names({"a.w", "b.w"})}})})}})},
               {"step", Value::integer(3)}});
}

TEST(Rename, a_parameter_is_renamed_wherever_it_occurs) {
  const Renamed renamed = rename(trained(), renames({{"a", "first"}}));
  std::vector<std::string> found;
  for (const Leaf& leaf : leaves_of(renamed.content)) found.push_back(leaf.key);
  EXPECT_THAT(found, ElementsAre("model.first.w", "model.b.w", "optim.state.first.w.exp_avg",
                                 "optim.param_groups.0.lr", "optim.param_groups.0.params", "step"));
  EXPECT_TRUE(same(leaves_of(renamed.content)[4].value, names({"first.w", "b.w"})));
  EXPECT_THAT(renamed.renamed,
              ElementsAre(testing::Pair("model.a.w", "model.first.w"),
                          testing::Pair("optim.state.a.w.exp_avg", "optim.state.first.w.exp_avg")));
}

TEST(Rename, flattened_optimizers_have_names_inside_their_keys) {
  const Value content =
      dict({{"a.w", tensor()},
            {"optimizer",
             dict({{"state.a.w.step", tensor()}, {"param_groups.a.w.lr", Value::floating(0.1)}})}});
  EXPECT_THAT(
      keys(content, renames({{"a", "x.y"}})),
      ElementsAre("x.y.w", "optimizer.state.x.y.w.step", "optimizer.param_groups.x.y.w.lr"));
}

TEST(Rename, ids_are_no_names) {
  const Value content = dict(
      {{"model", dict({{"0.w", tensor()}})},
       {"optim", dict({{"state", dict({{"0", dict({{"step", tensor()}})}})},
                       {"param_groups", Value::list({dict({{"params", Value::list({})}})})}})}});
  EXPECT_THAT(keys(content, renames({{"0", "x"}})),
              ElementsAre("model.x.w", "optim.state.0.step", "optim.param_groups.0.params"));
}

TEST(Rename, dropping_a_parameter_drops_its_state_and_its_place_in_the_lists) {
  NameRules rules;
  rules.drop = {"a.*"};
  const Renamed renamed = rename(trained(), rules);
  std::vector<std::string> found;
  for (const Leaf& leaf : leaves_of(renamed.content)) found.push_back(leaf.key);
  EXPECT_THAT(found, ElementsAre("model.b.w", "optim.param_groups.0.lr",
                                 "optim.param_groups.0.params", "step"));
  EXPECT_TRUE(same(leaves_of(renamed.content)[2].value, names({"b.w"})));
  EXPECT_THAT(renamed.dropped, ElementsAre("model.a.w", "optim.state.a.w.exp_avg"));
}

// Like many models of Hugging Face: `model` is a module, with the head beside it.
Members headed() {
  return {{"model.a.w", tensor()}, {"head.w", tensor()}};
}

TEST(Rename, a_rule_is_about_whole_keys_where_it_matches_any) {
  const Value content = dict({{"model", dict(headed())}});
  NameRules strip;
  strip.strip = {"model"};
  EXPECT_THAT(keys(content, strip), ElementsAre("model.a.w", "head.w"));
  EXPECT_THAT(keys(content, renames({{"model", "net"}})),
              ElementsAre("net.model.a.w", "net.head.w"));
  EXPECT_THAT(keys(content, renames({{"model.model", "model.net"}})),
              ElementsAre("model.net.a.w", "model.head.w"));
  EXPECT_THAT(keys(content, renames({{"head", "lm_head"}})),
              ElementsAre("model.model.a.w", "model.lm_head.w"));
  // Names stay one step of their path, as in a module's state dict.
  EXPECT_EQ(leaves_of(rename(content, renames({{"model.head", "model.x.y"}})).content)[1].path,
            (KeyPath{"model", "x.y.w"}));
}

TEST(Rename, what_a_rule_applied_to_is_said) {
  const auto scopes = [](const NameRules& rules) {
    std::vector<std::string> out;
    for (const RuleScope& scope : rename(trained(), rules).scopes)
      out.push_back(scope.rule + (scope.names ? ": names" : ": keys"));
    return out;
  };
  NameRules rules = renames({{"/step", "steps"}, {"model.a", "model.x"}, {"b", "y"}});
  rules.strip = {"optim"};
  EXPECT_THAT(scopes(rules), ElementsAre("optim: keys", "/step=steps: keys",
                                         "model.a=model.x: names", "b=y: names"));
  NameRules drop;
  drop.drop = {"step", "a.*"};
  EXPECT_THAT(scopes(drop), ElementsAre("step: keys", "a.*: names"));
  drop.drop = {"model.a.*", "/model.b.*"};
  EXPECT_THAT(scopes(drop), ElementsAre("model.a.*: names", "/model.b.*: keys"));
}

TEST(Rename, a_prefix_that_some_names_have_is_refused) {
  NameRules strip;
  strip.strip = {"model"};
  expect_error(
      ErrorCode::kUsage,
      "'model.' stands before 1 of 2 parameters in the state dict, but not before 'head.w'",
      [&] { rename(dict(headed()), strip); });
  expect_error(ErrorCode::kUsage, "in 'net', but not before 'net.head.w'", [&] {
    rename(dict({{"net", dict(headed())}}), strip);
  });
  strip.strip = {"net.model."};
  expect_error(ErrorCode::kUsage, "not before 'net.head.w'", [&] {
    rename(dict({{"net", dict(headed())}}), strip);
  });
  EXPECT_THAT(keys(dict(headed()), renames({{"model.", ""}})), ElementsAre("a.w", "head.w"));
  // Values beside the parameters of a flat state dict lose it as well.
  strip.strip = {"model"};
  EXPECT_THAT(keys(dict({{"model.a", tensor()}, {"model.n", Value::integer(1)}}), strip),
              ElementsAre("a", "n"));
}

TEST(Rename, optimizers_follow_rules_for_the_keys_of_a_model) {
  EXPECT_THAT(keys(trained(), renames({{"model.a", "model.first"}})),
              ElementsAre("model.first.w", "model.b.w", "optim.state.first.w.exp_avg",
                          "optim.param_groups.0.lr", "optim.param_groups.0.params", "step"));
  EXPECT_TRUE(
      same(leaves_of(rename(trained(), renames({{"model.a", "model.first"}})).content)[4].value,
           names({"first.w", "b.w"})));
  EXPECT_THAT(keys(trained(), renames({{"/model.a", "model.first"}}))[2],
              "optim.state.a.w.exp_avg");
  expect_error(ErrorCode::kUsage, "renames parameters only in 'optim'", [] {
    rename(trained(), renames({{"optim.state.a", "optim.state.x"}}));
  });
  expect_error(ErrorCode::kUsage, "renames 'a.w' in the model, but not in", [] {
    rename(trained(), renames({{"model.a.", ""}}));
  });
  NameRules strip;
  strip.strip = {"optim.state.a"};
  expect_error(ErrorCode::kUsage, "'optim.state.a.=' renames parameters only in 'optim'",
               [&] { rename(trained(), strip); });
  NameRules drop;
  drop.drop = {"model.a.*"};
  EXPECT_THAT(rename(trained(), drop).dropped, ElementsAre("model.a.w", "optim.state.a.w.exp_avg"));
  drop.drop = {"model.**"};
  EXPECT_THAT(rename(trained(), drop).dropped, ElementsAre("model.a.w", "model.b.w"));
}

TEST(Rename, one_of_two_models_is_not_renamed_alone) {
  const Value content = dict({{"model", dict({{"a.w", tensor()}, {"b.w", tensor()}})},
                              {"ema", dict({{"a.w", tensor()}, {"b.w", tensor()}})}});
  expect_error(ErrorCode::kUsage, "'ema.a.w' would keep its name", [&] {
    rename(content, renames({{"model.a", "model.x"}}));
  });
  EXPECT_THAT(keys(content, renames({{"model.a", "model.x"}, {"ema.a", "ema.x"}})),
              ElementsAre("model.x.w", "model.b.w", "ema.x.w", "ema.b.w"));
  EXPECT_THAT(keys(content, renames({{"/model.a", "model.x"}})),
              ElementsAre("model.x.w", "model.b.w", "ema.a.w", "ema.b.w"));
  NameRules drop;
  drop.drop = {"model.a.w"};
  expect_error(ErrorCode::kUsage, "'ema.a.w' would stay", [&] { rename(content, drop); });
  drop.drop = {"/model.a.w"};
  EXPECT_THAT(rename(content, drop).dropped, ElementsAre("model.a.w"));
}

TEST(Rename, a_key_that_is_a_module_elsewhere_is_refused) {
  const Value content = dict({{"a", Value::integer(1)}, {"model", dict({{"a.w", tensor()}})}});
  expect_error(ErrorCode::kUsage, "'a' is a key and also the front of the parameter 'a.w'", [&] {
    rename(content, renames({{"a", "x"}}));
  });
  EXPECT_THAT(keys(content, renames({{"/a", "x"}})), ElementsAre("x", "model.a.w"));
  EXPECT_THAT(keys(content, renames({{"model.a", "model.x"}})), ElementsAre("a", "model.x.w"));
}

TEST(Rename, whole_keys_move_levels) {
  const Value content = dict({{"state_dict", dict({{"a.w", tensor()}})}, {"step", Value()}});
  EXPECT_THAT(keys(content, renames({{"state_dict", "model"}})), ElementsAre("model.a.w", "step"));
  EXPECT_THAT(keys(content, renames({{"state_dict.", ""}})), ElementsAre("a.w", "step"));
  EXPECT_THAT(keys(content, renames({{"state_dict", "app.model"}})),
              ElementsAre("app.model.a.w", "step"));
  EXPECT_THAT(keys(content, renames({{"/", "all."}})),
              ElementsAre("all.state_dict.a.w", "all.step"));
  const auto path = [&](const NameRule& rule) {
    return leaves_of(rename(content, renames({rule})).content)[0].path;
  };
  EXPECT_EQ(path({"state_dict", "app.model"}), (KeyPath{"app", "model", "a.w"}));
  EXPECT_EQ(path({"state_dict.a", "model.b.c"}), (KeyPath{"model", "b", "c.w"}));
  EXPECT_EQ(path({"state_dict.a.w", "model.b.w"}), (KeyPath{"model", "b.w"}));
  EXPECT_EQ(path({"/state_dict.a.w", "w"}), (KeyPath{"w"}));
  EXPECT_EQ(path({"/state_dict.a.w", "state_dict.b"}), (KeyPath{"state_dict", "b"}));
}

TEST(Rename, containers_keep_their_kinds_and_modules_their_versions) {
  const auto versions = [](const std::vector<std::string>& modules) {
    Members members;
    for (const std::string& module : modules) members.emplace_back(module, Value::integer(1));
    return dict({{"_metadata", dict(members)}});
  };
  const Value content = ordered({{"_orig_mod.a.w", tensor()}}, versions({"", "_orig_mod.a"}));
  NameRules rules;
  rules.strip_wrappers = true;
  const Renamed renamed = rename(content, rules);
  EXPECT_THAT(renamed.wrappers, ElementsAre("_orig_mod."));
  EXPECT_TRUE(same(renamed.content, ordered({{"a.w", tensor()}}, versions({"", "a"}))));
}

TEST(Rename, tuples_lists_and_integer_keys_stay) {
  const Value content = Value::dict(
      {{Value::integer(7), Value::tuple({tensor(), Value::integer(1)})},
       {Value::string("a"), Value::list({dict({{"x", tensor()}}), dict({{"x", tensor()}})})}});
  const Value expected = Value::dict(
      {{Value::integer(7), Value::tuple({tensor(), Value::integer(1)})},
       {Value::string("b"), Value::list({dict({{"x", tensor()}}), dict({{"x", tensor()}})})}});
  EXPECT_TRUE(same(rename(content, renames({{"a", "b"}})).content, expected));
}

TEST(Rename, collisions_name_both) {
  expect_error(ErrorCode::kRekeyCollision, "'a.w' and 'b.w' would both be named 'b.w'", [] {
    rename(trained(), renames({{"a", "b"}}));
  });
  const Value content = dict({{"a", dict({{"x", Value()}})}, {"b", Value()}});
  expect_error(ErrorCode::kRekeyCollision, "'a.x' and 'b' would lie inside each other: 'a'", [&] {
    rename(content, renames({{"b", "a"}}));
  });
}

TEST(Rename, rules_that_match_nothing_are_refused) {
  expect_error(ErrorCode::kRekeyUnused, "'c' matches nothing", [] {
    rename(trained(), renames({{"a", "x"}, {"c", "d"}}));
  });
  expect_error(ErrorCode::kRekeyUnused, "'modle.' matches nothing; did you mean 'model'?", [] {
    rename(trained(), renames({{"modle.", "x."}}));
  });
  NameRules drop;
  drop.drop = {"modle.**"};
  expect_error(ErrorCode::kRekeyUnused, "'modle.**' matches nothing; did you mean 'model.**'?",
               [&] { rename(trained(), drop); });
  drop.drop = {"model.c.*"};
  expect_error(ErrorCode::kRekeyUnused, "'model.c.*' matches nothing",
               [&] { rename(trained(), drop); });
}

TEST(PlacedLeaves, what_is_not_moved_comes_back_as_it_was) {
  const Value root = dict({{"a", Value::list({tensor(), Value::tuple({tensor(), Value()})})},
                           {"b", ordered({{"x", Value::integer(1)}}, Value())},
                           {"e", dict({})}});
  EXPECT_TRUE(same(rebuilt(placed_leaves(root)), root));
  EXPECT_TRUE(same(rebuilt({}), dict({})));
}

}  // namespace
}  // namespace fsdp::formats
