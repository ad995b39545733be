// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hf/expected_tensors.h"

#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdp::formats::hf {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Returns the layers of which tensors are expected, of 6; empty if they are not required.
std::vector<std::string> layers_where(const std::string& predicates) {
  const Json config = parse_json(
      R"({"kinds": ["a", "b", "a", "c", "a", "b"], "some": [1, 5, 6], "first": 2, "period": 3})");
  const Json about = parse_json("{}");
  const ConfigValues values(config, about);
  std::map<std::string, ExpectedTensor> found;
  const Json tail = parse_json(R"([null, [["6", [)" + predicates + "]]], null, 0]");
  ExpectedTensors(values, found).add("{}", *tail.as_array());
  std::vector<std::string> out;
  for (const auto& [name, tensor] : found) {
    if (tensor.required) out.push_back(name);
  }
  return out;
}

TEST(ExpectedTensorsTest, layers_are_those_of_all_predicates) {
  EXPECT_THAT(layers_where(""), ElementsAre("0", "1", "2", "3", "4", "5"));
  EXPECT_THAT(layers_where(R"(["odd"])"), ElementsAre("1", "3", "5"));
  EXPECT_THAT(layers_where(R"([">=", "first"], ["+1%", "period"])"), ElementsAre("2", "5"));
  EXPECT_THAT(layers_where(R"(["not", [">=", "first"], ["+1%", "period"]])"),
              ElementsAre("0", "1", "3", "4"));
}

TEST(ExpectedTensorsTest, a_list_tells_the_kind_of_each_layer_or_the_numbers_of_some) {
  EXPECT_THAT(layers_where(R"(["is", "kinds", ["a", "c"]])"), ElementsAre("0", "2", "3", "4"));
  EXPECT_THAT(layers_where(R"(["in", "some"])"), ElementsAre("1", "5"));
  EXPECT_THAT(layers_where(R"(["not in", "some"])"), ElementsAre("0", "2", "3", "4"));
  EXPECT_THAT(layers_where(R"(["+1 in", "some"])"), ElementsAre("0", "4", "5"));
}

TEST(ExpectedTensorsTest, of_what_is_not_known_nothing_is_required) {
  EXPECT_THAT(layers_where(R"(["is", "nowhere", ["a"]])"), IsEmpty());
  EXPECT_THAT(layers_where(R"(["near", "some"])"), IsEmpty());
}

}  // namespace
}  // namespace fsdp::formats::hf
