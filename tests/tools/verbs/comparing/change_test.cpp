// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/comparing/change.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/verbs/contents/folded_keys.h"

namespace fsdp::cli {
namespace {

using testing::ElementsAre;

// A tensor whose norm is `left` and that moved by `apart`.
ComparedTensor tensor(const std::string& key, double left, double apart) {
  ComparedTensor compared{key, formats::DType::kFloat32, formats::DType::kFloat32, {4}, {}};
  compared.figures.count = 4;
  compared.figures.different = apart == 0 ? 0 : 1;
  compared.figures.left.add_sum(left * left);
  compared.figures.apart.add_sum(apart * apart);
  compared.figures.max_abs = apart;
  return compared;
}

std::vector<std::string> names(const std::vector<Change>& changes) {
  std::vector<std::string> found;
  for (const Change& change : changes) found.push_back(change.name);
  return found;
}

std::vector<std::string> ranked(std::vector<Change> changes, ChangeOrder order) {
  rank(changes, order);
  return names(changes);
}

std::vector<ComparedTensor> model() {
  return {tensor("emb.weight", 100, 10),     tensor("layers.0.q.bias", 0, 1),
          tensor("layers.0.q.weight", 4, 2), tensor("layers.1.q.bias", 3, 0),
          tensor("layers.1.q.weight", 4, 5), tensor("scale", 1, 0.5)};
}

TEST(Rank, the_largest_change_is_first_and_what_did_not_change_is_dropped) {
  const auto compared = model();
  const auto changes = changes_of(compared, ChangeUnit::kTensor);
  EXPECT_THAT(ranked(changes, ChangeOrder::kRelative),
              ElementsAre("layers.0.q.bias", "layers.1.q.weight", "layers.0.q.weight", "scale",
                          "emb.weight"));
  EXPECT_THAT(ranked(changes, ChangeOrder::kAbsolute),
              ElementsAre("emb.weight", "layers.1.q.weight", "layers.0.q.weight", "layers.0.q.bias",
                          "scale"));
  EXPECT_THAT(ranked(changes, ChangeOrder::kName),
              ElementsAre("emb.weight", "layers.0.q.bias", "layers.0.q.weight", "layers.1.q.weight",
                          "scale"));
}

TEST(Rank, what_has_no_distance_comes_first) {
  auto compared = model();
  compared[5].figures.unbounded = 1;
  const auto changes = changes_of(compared, ChangeUnit::kTensor);
  EXPECT_EQ(ranked(changes, ChangeOrder::kRelative).front(), "scale");
  EXPECT_EQ(ranked(changes, ChangeOrder::kAbsolute).front(), "scale");
}

TEST(Changes, modules_and_layers_have_the_norms_of_their_tensors) {
  const auto compared = model();
  const auto modules = changes_of(compared, ChangeUnit::kModule);
  EXPECT_THAT(names(modules), ElementsAre("emb", "layers.0.q", "layers.1.q", "(root)"));
  EXPECT_DOUBLE_EQ(*modules[1].relative(), std::sqrt(1.0 + 4) / 4);
  EXPECT_EQ(*modules[2].relative(), 1);  // 5 by the root of 3 * 3 + 4 * 4
  EXPECT_EQ(modules[2].tensors, 2U);
  EXPECT_EQ(modules[2].changed, 1U);
  EXPECT_EQ(modules[2].elements, 8U);
  EXPECT_EQ(modules[2].max_abs, 5);
  EXPECT_THAT(names(changes_of(compared, ChangeUnit::kLayer)),
              ElementsAre("emb", "layers.0", "layers.1", "(root)"));
  EXPECT_THAT(names(changes_of({tensor("layers.0", 1, 1), tensor("state.1.m.2", 1, 1)},
                               ChangeUnit::kLayer)),
              ElementsAre("layers", "state.1"));
}

TEST(Folded, the_largest_change_stands_for_alike_layers) {
  const auto compared = model();
  auto rows = folded(changes_of(compared, ChangeUnit::kTensor), compared);
  rank(rows, ChangeOrder::kRelative);
  EXPECT_THAT(names(rows),
              ElementsAre("layers.{0,1}.q.bias", "layers.{0,1}.q.weight", "scale", "emb.weight"));
  EXPECT_EQ(rows[0].most, "0");
  EXPECT_EQ(*rows[0].relative(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(rows[1].most, "1");
  EXPECT_EQ(*rows[1].relative(), 1.25);
  EXPECT_EQ(rows[1].tensors, 2U);
  EXPECT_EQ(rows[0].changed, 1U);
  EXPECT_EQ(rows[2].most, "");
}

TEST(FoldedPart, is_what_stands_for_the_range) {
  EXPECT_EQ(folded_part("a.{0..9}.w", "a.7.w"), "7");
  EXPECT_EQ(folded_part("a.{0..9}", "a.7"), "7");
  EXPECT_EQ(folded_part("a.{0..9}.b.{0,1}.w", "a.7.b.1.w"), "a.7.b.1.w");
  EXPECT_EQ(folded_part("a.w", "a.w"), "a.w");
}

}  // namespace
}  // namespace fsdp::cli
