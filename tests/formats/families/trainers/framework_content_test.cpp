// SPDX-License-Identifier: Apache-2.0
#include "formats/families/trainers/framework_content.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/state/content/tensor_value.h"
#include "tests/support/expect_error.h"
#include "tests/support/state_values.h"

namespace fsdp::formats {
namespace {

using test::dict;
using test::Members;
using test::tensor;
using testing::ElementsAre;

Value model() {
  return dict({{"l0.weight", tensor()}, {"l0.bias", tensor()}});
}
Value optimizer() {
  const Value group =
      dict({{"lr", Value::floating(0.1)}, {"params", Value::list({Value::string("l0.weight")})}});
  return dict({{"state", dict({{"l0.weight", dict({{"step", tensor()}})}})},
               {"param_groups", Value::list({group})}});
}
std::vector<std::string> keys(const Value& value) {
  std::vector<std::string> out;
  for (const auto& [key, child] : value.entries()) out.push_back(*key.as_string());
  return out;
}

TEST(FrameworkContent, a_trainers_state_is_taken_apart_by_roles) {
  const TrainerState state =
      trainer_state(dict({{"epoch", Value::integer(3)},
                          {"state_dict", model()},
                          {"optimizer_states", Value::list({optimizer(), optimizer()})}}));
  EXPECT_EQ(state.models.size(), 1U);
  EXPECT_EQ(state.optimizers.size(), 2U);
  ASSERT_EQ(state.rest.size(), 1U);
  EXPECT_EQ(*state.rest[0].first.as_string(), "epoch");
}

TEST(FrameworkContent, a_bare_model_is_one_and_what_stands_beside_its_keys_is_the_rest) {
  EXPECT_THAT(keys(trainer_state(model()).models.at(0)), ElementsAre("l0.weight", "l0.bias"));
  EXPECT_EQ(trainer_state(optimizer()).optimizers.size(), 1U);
  const TrainerState torchtitan = trainer_state(
      dict({{"l0.weight", tensor()}, {"optimizer", optimizer()}, {"step", Value::integer(1)}}));
  EXPECT_THAT(keys(torchtitan.models.at(0)), ElementsAre("l0.weight"));
  EXPECT_EQ(torchtitan.optimizers.size(), 1U);
  EXPECT_EQ(torchtitan.rest.size(), 1U);
}

TEST(FrameworkContent, lightning_has_a_file_and_a_folder_of_the_same) {
  const TrainerState state = trainer_state(
      dict({{"model", model()}, {"optimizer", optimizer()}, {"epoch", Value::integer(3)}}));
  const Value file = lightning_file(state);
  EXPECT_THAT(keys(file), ElementsAre("epoch", "global_step", "pytorch-lightning_version",
                                      "state_dict", "optimizer_states"));
  EXPECT_EQ(file.find("epoch")->as_int(), 3);
  EXPECT_EQ(file.find("optimizer_states")->items().size(), 1U);
  EXPECT_THAT(keys(lightning_sharded(state, "model")), ElementsAre("model", "optimizer_0"));
  EXPECT_THAT(keys(lightning_meta(state)),
              ElementsAre("epoch", "global_step", "pytorch-lightning_version"));
}

TEST(FrameworkContent, what_has_no_place_is_refused) {
  test::expect_error(ErrorCode::kUnsupported, "has one model, the checkpoint 2", [&] {
    lightning_file(trainer_state(dict({{"gan", model()}, {"critic", model()}})));
  });
  test::expect_error(ErrorCode::kUnsupported, "has one model, the checkpoint 0", [&] {
    lightning_file(trainer_state(dict({{"epoch", Value::integer(1)}})));
  });
  test::expect_error(ErrorCode::kUnsupported, "beside other values", [&] {
    trainer_state(dict({{"app", dict({{"model", model()}, {"n", Value::integer(1)}})}}));
  });
}

}  // namespace
}  // namespace fsdp::formats
