// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hf/flat_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/state_values.h"

namespace fsdp::formats::hf {
namespace {

using test::tensor;
using testing::ElementsAre;
using testing::IsEmpty;

Value model(const std::vector<std::string>& fronts, const std::vector<std::string>& more = {}) {
  test::Members members;
  for (const std::string& front : fronts) {
    for (const char* name : {".conv.weight", ".conv.bias"})
      members.emplace_back(front + name, tensor());
  }
  for (const std::string& name : more) members.emplace_back(name, tensor());
  return test::dict(members);
}

TEST(FlatModels, a_model_and_its_average_are_two) {
  EXPECT_THAT(flat_models(model({"net", "net_ema"})), ElementsAre("net", "net_ema"));
  EXPECT_THAT(flat_models(model({"a.net", "a.net_ema"})), ElementsAre("a.net", "a.net_ema"));
  EXPECT_THAT(flat_models(model({"teacher", "student"})), ElementsAre("student", "teacher"));
  EXPECT_THAT(flat_models(model({"gen", "gen_avg", "vae"}, {"sigma", "vae.x"})),
              ElementsAre("gen", "gen_avg"));
}

TEST(FlatModels, modules_of_one_model_are_not_models) {
  EXPECT_THAT(flat_models(model({"block1", "block10", "block_2", "block"})), IsEmpty());
  EXPECT_THAT(flat_models(model({"question_encoder", "ctx_encoder"})), IsEmpty());
  EXPECT_THAT(flat_models(model({"net", "net_ema"}, {"net.more"})), IsEmpty());
  EXPECT_THAT(flat_models(model({"net_ema"})), IsEmpty());
  EXPECT_THAT(flat_models(model({}, {"ema", "net"})), IsEmpty());
  EXPECT_THAT(flat_models(model({}, {"ema.w", "net.w"})), IsEmpty()) << "one tensor each";
  EXPECT_THAT(flat_models(model({})), IsEmpty());
}

TEST(FlatModels, a_front_is_taken_off) {
  const Value below = tensors_below(model({"net", "net_ema"}), "net");
  ASSERT_EQ(below.entries().size(), 2U);
  EXPECT_EQ(*below.entries()[0].first.as_string(), "conv.weight");
}

}  // namespace
}  // namespace fsdp::formats::hf
