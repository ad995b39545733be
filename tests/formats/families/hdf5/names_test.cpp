// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hdf5/names.h"

#include <string>

#include <gtest/gtest.h>

namespace fsdp::formats::hdf5 {
namespace {

TEST(Hdf5Names, steps_are_cut_at_dots) {
  EXPECT_EQ(names_of({"model", "layers.0.weight"}), (Path{"model", "layers", "0", "weight"}));
  EXPECT_EQ(names_of({"list", std::int64_t{3}}), (Path{"list", "3"}));
}

TEST(Hdf5Names, what_no_link_can_be_called_is_escaped) {
  EXPECT_EQ(names_of({"a/b%c"}), (Path{"a%2Fb%25c"}));
  EXPECT_EQ(names_of({std::string("n\0l", 3)}), (Path{"n%00l"}));
  EXPECT_EQ(names_of({""}), (Path{"%"}));
  EXPECT_EQ(names_of({"a..b"}), (Path{"a", "%", "b"}));
  EXPECT_EQ(names_of({"\xFF"}), (Path{"%FF"}));
  EXPECT_EQ(names_of({"größe"}), (Path{"größe"}));
  EXPECT_EQ(names_of({}), (Path{"%"}));
}

TEST(Hdf5Names, no_key_takes_the_hidden_group) {
  EXPECT_EQ(names_of({".fsdp"}), (Path{"%", "fsdp"}));
  Places places({{""}, {".fsdp"}});
  EXPECT_EQ(places.dataset({""}), (Path{"%"}));
  EXPECT_EQ(places.dataset({".fsdp"}), (Path{"%.fsdp"}));
}

TEST(Hdf5Names, a_path_below_a_tensor_keeps_its_rest_joined) {
  const std::vector<KeyPath> tensors = {
      {"a"}, {"a.b"}, {"a", "c.d"}, {"x", "y"}, {"x", "y.z", "w"}};
  Places places(tensors);
  EXPECT_EQ(places.dataset(tensors[0]), (Path{"a"}));
  EXPECT_EQ(places.dataset(tensors[1]), (Path{"a.b"}));
  EXPECT_EQ(places.dataset(tensors[2]), (Path{"a.c.d"}));
  EXPECT_EQ(places.dataset(tensors[3]), (Path{"x", "y"}));
  EXPECT_EQ(places.dataset(tensors[4]), (Path{"x", "y.z.w"}));
}

TEST(Hdf5Names, equal_names_are_numbered) {
  const std::vector<KeyPath> tensors = {{"a", "b.c"}, {"a.b", "c"}, {"a.b.c"}, {"a.b.c#2"}};
  Places places(tensors);
  EXPECT_EQ(places.dataset(tensors[0]), (Path{"a", "b", "c"}));
  EXPECT_EQ(places.dataset(tensors[1]), (Path{"a", "b", "c#2"}));
  EXPECT_EQ(places.dataset(tensors[2]), (Path{"a", "b", "c#3"}));
  EXPECT_EQ(places.dataset(tensors[3]), (Path{"a", "b", "c#2#2"}));
}

TEST(Hdf5Names, names_do_not_nest_without_end) {
  std::string dots(1000, '.');
  const Path names = names_of({"a", dots + "b"});
  ASSERT_EQ(names.size(), 64U);
  EXPECT_EQ(names[62], "%");
  EXPECT_TRUE(names[63].starts_with("%.%.%"));
  EXPECT_TRUE(names[63].ends_with(".b"));
}

TEST(Hdf5Names, more_groups_than_names_justify_are_not_made) {
  std::vector<KeyPath> tensors;
  std::string steps;
  for (int i = 0; i < 40; ++i) steps += ".k";
  for (int i = 0; i < 25; ++i) tensors.push_back({std::to_string(i) + steps});
  Places few(tensors);
  EXPECT_EQ(few.dataset(tensors[0]).size(), 41U);
  tensors.push_back({"26" + steps});
  tensors.push_back({"27" + steps});
  Places many(tensors);
  EXPECT_EQ(many.dataset(tensors[0]), (Path{"0" + steps}));
  EXPECT_EQ(many.attribute({"x.y"}), (Path{"x.y"}));
  // Only values.
  Places values({});
  std::size_t groups = 0;
  for (int i = 0; i < 1000; ++i) groups += values.attribute({std::to_string(i) + steps}).size() - 1;
  EXPECT_GT(groups, 1000U);
  EXPECT_LE(groups, 3000U);
}

// Each name was compared with all earlier ones: 50,000 did not finish.
TEST(Hdf5Names, many_equal_names_are_numbered_one_after_another) {
  Places places({});
  Path last;
  for (int i = 0; i < 200'000; ++i) last = places.attribute({"nan"});
  EXPECT_EQ(last, (Path{"nan#200000"}));
}

TEST(Hdf5Names, attributes_stand_on_groups_and_never_on_datasets) {
  Places places({{"a"}, {"m", "w"}});
  places.dataset({"a"});
  places.dataset({"m", "w"});
  EXPECT_EQ(places.attribute({"epoch"}), (Path{"epoch"}));
  EXPECT_EQ(places.attribute({"m", "lr"}), (Path{"m", "lr"}));
  EXPECT_EQ(places.attribute({"a.step"}), (Path{"a.step"}));
  EXPECT_EQ(places.attribute({"epoch"}), (Path{"epoch#2"}));
}

}  // namespace
}  // namespace fsdp::formats::hdf5
