// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hf/config_values.h"

#include <gtest/gtest.h>

namespace fsdp::formats::hf {
namespace {

class ConfigValuesTest : public testing::Test {
 protected:
  std::optional<std::int64_t> number(const std::string& expression) const {
    return ConfigValues(config_, about_).number(expression);
  }
  std::optional<bool> holds(const std::string& condition) const {
    return ConfigValues(config_, about_).holds(parse_json(condition));
  }

  Json config_ = parse_json(
      R"({"hidden_size": 96, "heads": 4, "inner": null, "ratio": 2.5, "depths": [2, 6], "text_config": {"size": 7},
          "act": "silu", "bias": true, "old_name": 11, "empty": [], "id2label": {"0": "a", "1": "b", "2": "c"}})");
  Json about_ = parse_json(
      R"({"defaults": {"inner": null, "head_dim": {"=": "hidden_size/heads"}, "layers": 12, "kinds": ["a", "b", "b"], "unknown": {"?": 1},
                       "loop": {"=": "loop+1"}, "new_name": 5},
          "alias": {"old_name": "new_name"}})");
};

TEST_F(ConfigValuesTest, expressions_are_sums_of_products) {
  EXPECT_EQ(number("hidden_size"), 96);
  EXPECT_EQ(number("3*hidden_size"), 288);
  EXPECT_EQ(number("2*hidden_size*heads/3-text_config.size+1"), 250);
  EXPECT_EQ(number("depths.1"), 6);
  EXPECT_EQ(number("depths.#+1"), 3);
  EXPECT_EQ(number("hidden_size*ratio"), 240);
  EXPECT_EQ(number("heads*ratio/3"), 3);  // 3.33, rounded down
  EXPECT_EQ(number("hidden_size//7*7"), 91);
  EXPECT_EQ(number("17"), 17);
}

TEST_F(ConfigValuesTest, what_the_configuration_leaves_out_has_a_default) {
  EXPECT_EQ(number("layers"), 12);
  EXPECT_EQ(number("head_dim*heads"), 96);
  EXPECT_EQ(number("new_name"), 11);  // under its older name
  EXPECT_EQ(number("inner|4*hidden_size"), 384);
  EXPECT_EQ(number("layers|4*hidden_size"), 12);
  EXPECT_EQ(number("num_labels"), 3);
  EXPECT_EQ(number("kinds.#"), 3);
}

TEST_F(ConfigValuesTest, what_is_not_known_has_no_value) {
  for (const char* expression : {"unknown", "nowhere", "act", "hidden_size/unknown", "depths.2",
                                 "act.#", "inner", "heads-hidden_size", "loop", "hidden_size/0",
                                 "hidden_size*hidden_size*hidden_size*hidden_size*hidden_size*"
                                 "hidden_size*hidden_size*hidden_size"})
    EXPECT_EQ(number(expression), std::nullopt) << expression;
}

TEST_F(ConfigValuesTest, conditions_hold_or_not_or_are_not_known) {
  EXPECT_EQ(holds(R"(["true", "bias"])"), true);
  EXPECT_EQ(holds(R"(["false", "bias"])"), false);
  EXPECT_EQ(holds(R"(["true", "inner"])"), false);
  EXPECT_EQ(holds(R"(["true", "empty"])"), false);
  EXPECT_EQ(holds(R"(["==", "act", "silu"])"), true);
  EXPECT_EQ(holds(R"(["!=", "act", "silu"])"), false);
  EXPECT_EQ(holds(R"([">", "heads", 3])"), true);
  EXPECT_EQ(holds(R"(["<", "heads", 3])"), false);
  EXPECT_EQ(holds(R"(["equals", "heads", "heads"])"), true);
  EXPECT_EQ(holds(R"(["differs", "heads", "heads"])"), false);
  EXPECT_EQ(holds(R"(["differs", "heads", "hidden_size"])"), true);
  EXPECT_EQ(holds(R"(["differs", "heads", "unknown"])"), std::nullopt);
  EXPECT_EQ(holds(R"(["true", "unknown"])"), std::nullopt);
}

}  // namespace
}  // namespace fsdp::formats::hf
