// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/map/parameters.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fsdp::formats::map {
namespace {

using test::expect_error;

constexpr const char* kRules =
    "model_type = [\"llama\", \"mistral\"]\n"
    "[parameters]\n"
    "heads = { config = [\"text.heads\", \"num_heads\"] }\n"
    "kv = { config = \"kv_heads\", value = \"heads\" }\n"
    "dim = { shape_of = \"l.{i:int}.q\", dim = -1, value = 9 }\n"
    "deep = { value = \"dim / heads\" }\n"
    "layers = { config = \"num_layers\", count_of = [\"l.{i:int}.q\", \"m.{i:int}.q\"] }\n"
    "[rename]\na = \"b\"\n";

class ParametersTest : public testing::Test {
 protected:
  std::int64_t value(const std::string& name) {
    ParameterValues values(rules_, given, shapes);
    return values(name);
  }
  void config(const char* text) {
    given.config = parse_json(text);
    given.config_name = "config.json";
  }
  GivenParameters given;
  ParameterValues::Shapes shapes;

 private:
  Rules rules_ = parse_rules(kRules, "r.toml", Direction::kForward);
};

TEST_F(ParametersTest, the_user_goes_before_the_config_and_it_before_shapes) {
  shapes = {{"other", {1}}, {"l.0.q", {3, 8}}};
  config(R"({"num_heads": 4, "text": {"heads": null}})");
  EXPECT_EQ(value("heads"), 4);
  EXPECT_EQ(value("kv"), 4);
  EXPECT_EQ(value("dim"), 8);
  EXPECT_EQ(value("deep"), 2);
  config(R"({"num_heads": 4, "text": {"heads": 2}, "kv_heads": 1})");
  EXPECT_EQ(value("heads"), 2);
  EXPECT_EQ(value("kv"), 1);
  given.values = {{"heads", 1}, {"dim", 5}};
  EXPECT_EQ(value("deep"), 5);
  shapes.clear();
  given.values = {{"heads", 3}};
  EXPECT_EQ(value("deep"), 3);
}

TEST_F(ParametersTest, names_are_counted) {
  EXPECT_EQ(value("layers"), 0);
  shapes = {{"l.0.q", {3, 8}}, {"l.0.k", {3}}, {"l.11.q", {}}, {"m.0.q", {}}, {"xm.0.q", {}}};
  EXPECT_EQ(value("layers"), 3);
  config(R"({"num_layers": 3})");
  EXPECT_EQ(value("layers"), 3);
  config(R"({"num_layers": 61})");
  expect_error(ErrorCode::kMismatch,
               "'layers' is 61 in config.json, but 3 by the names of the tensors; --set layers=N",
               [&] { value("layers"); });
  given.values = {{"layers", 5}};
  EXPECT_EQ(value("layers"), 5);
  given.values.clear();
  shapes.clear();
  EXPECT_EQ(value("layers"), 61);
}

TEST_F(ParametersTest, known_are_those_that_were_asked_for) {
  given.values = {{"heads", 2}};
  const Rules rules = parse_rules(kRules, "r.toml", Direction::kForward);
  ParameterValues values(rules, given, shapes);
  EXPECT_EQ(values("kv"), 2);
  EXPECT_EQ(values.known(), (std::map<std::string, std::int64_t>{{"heads", 2}, {"kv", 2}}));
}

TEST_F(ParametersTest, what_is_missing_or_does_not_fit_is_named) {
  expect_error(
      ErrorCode::kUsage,
      "r.toml: line 3: parameter 'heads' has no value, which a config.json has as 'text.heads' or "
      "'num_heads'",
      [&] { value("kv"); });
  given.values = {{"head", 2}};
  expect_error(ErrorCode::kUsage, "did you mean heads?", [&] { value("kv"); });
  given.values.clear();
  config(R"({"num_heads": 4.5})");
  expect_error(ErrorCode::kJson, "config.json: 'num_heads' is", [&] { value("heads"); });
  config(R"({"model_type": "gpt2", "num_heads": 4})");
  expect_error(ErrorCode::kKey,
               "config.json: has model_type 'gpt2', and the map r.toml is for 'llama' or 'mistral'",
               [&] { value("heads"); });
  config(R"({"model_type": "mistral", "num_heads": 4})");
  EXPECT_EQ(value("heads"), 4);
  shapes = {{"l.0.q", {}}};
  expect_error(ErrorCode::kShape, "dimension -1 of 'l.0.q'", [&] { value("dim"); });
  shapes = {{"l.0.q", {7}}};
  expect_error(ErrorCode::kShape, "7 is not divisible by 4", [&] { value("deep"); });
}

TEST(Parameters, words_are_names_and_whole_numbers) {
  EXPECT_EQ(parse_parameter("n=3"), std::pair(std::string("n"), std::int64_t{3}));
  EXPECT_EQ(parse_parameter("n=-3").second, -3);
  for (const char* word : {"n", "n=", "=3", "n=3.5", "n=3x", "n= 3", "n=9223372036854775808"})
    expect_error(ErrorCode::kUsage, "is not NAME=NUMBER", [word] { parse_parameter(word); });
}

TEST(Parameters, a_circle_is_refused) {
  const Rules rules = parse_rules(
      "[parameters]\na = { value = \"b + 1\" }\nb = { value = \"a\" }\n[rename]\nx = \"y\"\n", "r",
      Direction::kForward);
  const GivenParameters given;
  const ParameterValues::Shapes shapes;
  ParameterValues values(rules, given, shapes);
  expect_error(ErrorCode::kUsage, "depends on itself", [&] { values("a"); });
}

}  // namespace
}  // namespace fsdp::formats::map
