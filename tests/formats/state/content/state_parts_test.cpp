// SPDX-License-Identifier: Apache-2.0
#include "formats/state/content/state_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/state/content/tensor_value.h"
#include "tests/support/state_values.h"

namespace fsdp::formats {
namespace {

using test::dict;
using test::Members;
using test::tensor;
using testing::ElementsAre;

Value group() {
  return dict({{"lr", Value::floating(0.1)}, {"params", Value::list({Value::integer(0)})}});
}
Value optimizer() {
  return dict({{"state", dict({{"0", dict({{"step", tensor()}})}})},
               {"param_groups", Value::list({group()})}});
}
Value model() {
  return dict({{"l0.weight", tensor()}, {"l0.bias", tensor()}});
}

// "model model", "optimizer optim": kind and path of each part.
std::vector<std::string> parts(const Value& root) {
  std::vector<std::string> out;
  for (const StatePart& part : state_parts_of(root)) {
    const char* const names[] = {"model", "optimizer", "flattened", "other"};
    out.push_back(names[static_cast<int>(part.kind)] + std::string(" ") + joined(part.path));
  }
  return out;
}

TEST(StateRoles, members_of_the_top_level_are_parts) {
  const Value root = dict({{"epoch", Value::integer(3)},
                           {"model", model()},
                           {"optim", optimizer()},
                           {"rng_state", tensor(DType::kUInt8)}});
  EXPECT_THAT(parts(root),
              ElementsAre("other epoch", "model model", "optimizer optim", "other rng_state"));
}

TEST(StateRoles, a_bare_state_dict_is_one_part) {
  EXPECT_THAT(parts(model()), ElementsAre("model "));
  EXPECT_THAT(parts(optimizer()), ElementsAre("optimizer "));
  EXPECT_THAT(parts(tensor()), ElementsAre("other "));
  EXPECT_THAT(parts(dict({})), ElementsAre("other "));
}

TEST(StateRoles, lists_and_wrappers_are_looked_into) {
  const Value lightning = dict({{"state_dict", model()},
                                {"optimizer_states", Value::list({optimizer(), optimizer()})},
                                {"lr_schedulers", Value::list({dict({{"step", Value()}})})}});
  EXPECT_THAT(parts(lightning), ElementsAre("model state_dict", "optimizer optimizer_states.0",
                                            "optimizer optimizer_states.1", "other lr_schedulers"));
  const Value stateful = dict({{"app", dict({{"model", model()}, {"optim", optimizer()}})}});
  EXPECT_THAT(parts(stateful), ElementsAre("model app.model", "optimizer app.optim"));
}

TEST(StateRoles, torchtitan_has_its_model_at_the_top_level) {
  const Value flattened = dict(
      {{"state.l0.weight.step", tensor()}, {"param_groups.l0.weight.lr", Value::floating(0.1)}});
  const Value root = dict({{"l0.weight", tensor()},
                           {"norm._extra_state", Value::integer(1)},
                           {"optimizer", flattened},
                           {"rng", tensor(DType::kUInt8)},
                           {"train_state", dict({{"step", Value::integer(7)}})}});
  EXPECT_THAT(parts(root),
              ElementsAre("model ", "flattened optimizer", "other rng", "other train_state"));
}

TEST(StateRoles, an_optimizer_may_lack_state_or_hold_groups_that_were_not_read) {
  EXPECT_THAT(parts(dict({{"param_groups", Value::list({group()})}})), ElementsAre("optimizer "));
  const Value unread = dict({{"state", dict({{"0", dict({{"step", tensor()}})}})},
                             {"param_groups", Value::opaque(1, 0)}});
  EXPECT_THAT(parts(unread), ElementsAre("optimizer "));
  const Value fresh =
      dict({{"state", Value::opaque(1, 0)}, {"param_groups", Value::list({group()})}});
  EXPECT_THAT(parts(fresh), ElementsAre("optimizer "));
  EXPECT_THAT(parts(dict({{"param_groups", Value::list({})}})), ElementsAre("other "));
}

TEST(StateRoles, names_alone_make_no_optimizer) {
  // A model with a module called `state`.
  EXPECT_THAT(parts(dict({{"state.weight", tensor()}})), ElementsAre("model "));
  EXPECT_THAT(parts(dict({{"state", model()}, {"param_groups", Value::integer(1)}})),
              ElementsAre("model state", "other param_groups"));
}

TEST(StateRoles, ordered_dicts_and_extra_state_belong_to_a_model) {
  ObjectData call;
  call.callable = Value::global("collections", "OrderedDict");
  call.args = Value::tuple({});
  call.dict_items = {{Value::string("w"), tensor()}, {Value::string("_extra_state"), Value()}};
  EXPECT_THAT(parts(dict({{"m", Value::object(std::move(call))}})), ElementsAre("model m"));
}

}  // namespace
}  // namespace fsdp::formats
