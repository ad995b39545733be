// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/contents/key_tree.h"

#include <gtest/gtest.h>

namespace fsdp::cli {
namespace {

formats::TensorEntry tensor(const std::string& name, std::vector<std::int64_t> shape) {
  return {"model." + name,
          {"model", name},
          formats::DType::kFloat32,
          shape,
          formats::ChunkList(shape.size())};
}

formats::Index layers() {
  formats::Index index;
  for (const char* layer : {"10", "2", "1"}) {
    index.add(tensor(std::string("layers.") + layer + ".w", {2, 3}));
    index.add(tensor(std::string("layers.") + layer + ".b", {3}));
  }
  index.add(tensor("layers.11.w", {9, 9}));
  index.add(tensor("head.weight", {4}));
  index.add(formats::ValueEntry{"step", {"step"}, {}});
  return index;
}

TEST(KeyTree, children_stand_in_natural_order_with_totals) {
  const formats::Index index = layers();
  const auto tree = key_tree(index, false);
  ASSERT_EQ(tree->children.size(), 2U);
  const KeyNode& model = *tree->children[0];
  EXPECT_EQ(model.name, "model");
  EXPECT_EQ(model.tensors, 8U);
  EXPECT_EQ(model.numel, 3U * 9 + 81 + 4);
  EXPECT_EQ(model.bytes, 4U * (3 * 9 + 81 + 4));
  const KeyNode& list = *model.children[1];
  std::vector<std::string> names;
  for (const auto& child : list.children) names.push_back(child->name);
  EXPECT_EQ(names, (std::vector<std::string>{"1", "2", "10", "11.w"}));
}

TEST(KeyTree, what_does_not_branch_is_one_line) {
  const formats::Index index = layers();
  const auto tree = key_tree(index, false);
  EXPECT_EQ(tree->children[0]->children[0]->name, "head.weight");
}

// A key with as many parts as a name can have: every level is a call, also in the destructor.
TEST(KeyTree, a_key_of_thirty_thousand_parts_is_a_tree_of_few_levels) {
  std::string key = "k";
  for (int i = 1; i < 30'000; ++i) key += ".k";
  for (const bool branches : {false, true}) {
    formats::Index index;
    index.add(tensor(key, {2}));
    // Something beside it at every level, so that nothing is joined.
    for (std::size_t at = 1; branches && at < 1'000; at += 2)
      index.add(tensor(key.substr(0, at) + ".x", {2}));
    for (const bool fold : {false, true}) {
      const auto tree = key_tree(index, fold);
      std::size_t levels = 0;
      std::string name;
      for (const KeyNode* node = tree.get(); !node->children.empty(); ++levels) {
        node = node->children[0].get();
        name += (name.empty() ? "" : ".") + node->name;
      }
      EXPECT_LE(levels, 300U);
      EXPECT_EQ(name, "model." + key);
    }
  }
}

TEST(KeyTree, alike_layers_fold_and_odd_ones_stay) {
  const formats::Index index = layers();
  const auto tree = key_tree(index, true);
  const KeyNode& list = *tree->children[0]->children[1];
  ASSERT_EQ(list.children.size(), 2U);
  EXPECT_EQ(list.children[0]->name, "{1,2,10}");
  EXPECT_EQ(list.children[0]->copies, 3U);
  EXPECT_EQ(list.children[0]->numel, 27U);
  EXPECT_EQ(list.children[1]->name, "11.w");
}

TEST(KeyTree, a_range_tells_which_layers_are_alike) {
  const auto name_of = [](const std::vector<std::string>& numbers) {
    formats::Index index;
    for (const std::string& number : numbers) index.add(tensor("l." + number, {1}));
    const auto tree = key_tree(index, true);
    EXPECT_EQ(tree->children[0]->copies, numbers.size());
    EXPECT_EQ(tree->children[0]->numel, numbers.size());
    return tree->children[0]->name;
  };
  EXPECT_EQ(name_of({"0", "1", "2", "3"}), "model.l.{0..3}");
  EXPECT_EQ(name_of({"0", "1"}), "model.l.{0,1}");
  EXPECT_EQ(name_of({"0", "1", "2", "5"}), "model.l.{0..2,5}");
  EXPECT_EQ(name_of({"0", "2", "4", "6", "8"}), "model.l.{0,2,4,6,...}");
  EXPECT_EQ(name_of({"00", "01"}), "model.l.{00,01}");
  const std::string long_number(30, '9');
  EXPECT_EQ(name_of({"1", long_number}), "model.l.{1," + long_number + "}");
}

TEST(KeyTree, a_key_that_is_also_a_prefix_keeps_both) {
  formats::Index index;
  index.add(tensor("a", {1}));
  index.add(tensor("a.b", {2}));
  const auto tree = key_tree(index, false);
  const KeyNode& a = *tree->children[0];
  EXPECT_EQ(a.name, "model.a");
  EXPECT_NE(a.tensor, nullptr);
  ASSERT_EQ(a.children.size(), 1U);
  EXPECT_EQ(a.numel, 3U);
}

}  // namespace
}  // namespace fsdp::cli
