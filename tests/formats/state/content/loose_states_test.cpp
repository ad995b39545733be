// SPDX-License-Identifier: Apache-2.0
#include "formats/state/content/loose_states.h"

#include <gtest/gtest.h>

#include "tests/support/state_values.h"

namespace fsdp::formats {
namespace {

using test::dict;
using test::tensor;

std::string loose(const std::vector<std::string>& keys) {
  test::Members members;
  for (const std::string& key : keys) members.emplace_back(key, tensor());
  return loose_state(dict(members)).value_or("none");
}

TEST(LooseStates, states_by_number_and_by_name_are_found_among_keys) {
  EXPECT_EQ(loose({"model.a.weight", "optim.state.0.exp_avg"}), "optim.state.0.exp_avg");
  EXPECT_EQ(loose({"model.a.weight", "app.optim.state.a.weight.moment"}),
            "app.optim.state.a.weight.moment");
  EXPECT_EQ(loose({"scale", "state.scale.exp_avg"}), "state.scale.exp_avg");
  EXPECT_EQ(loose({"model.a.weight", "optimizer.state.exp_avg_sq.a.weight"}),
            "optimizer.state.exp_avg_sq.a.weight");
}

TEST(LooseStates, a_module_of_that_name_is_not_an_optimizer) {
  EXPECT_EQ(loose({"state.0.weight", "state.0.bias", "state.1.weight", "head.weight"}), "none");
  EXPECT_EQ(loose({"encoder.proj.weight", "state.proj.weight", "state.proj.bias"}), "none");
  EXPECT_EQ(loose({"weight", "state.weight.scale"}), "none");
  EXPECT_EQ(loose({"my_state.0.exp_avg", "state", "x.state", ".a", "..", "state."}), "none");
}

TEST(LooseStates, an_optimizer_with_groups_is_not_loose) {
  const Value state = dict({{"0", dict({{"exp_avg", tensor()}})}});
  const Value groups = Value::list({dict({{"params", Value::list({Value::integer(0)})}})});
  const Value model = dict({{"a.weight", tensor()}});
  EXPECT_EQ(loose_state(dict(
                {{"model", model}, {"optim", dict({{"state", state}, {"param_groups", groups}})}})),
            std::nullopt);
  EXPECT_EQ(loose_state(dict({{"model", model}, {"optim", dict({{"state", state}})}})),
            "optim.state.0.exp_avg");
}

}  // namespace
}  // namespace fsdp::formats
