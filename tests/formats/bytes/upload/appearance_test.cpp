// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/upload/appearance.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/golden.h"
#include "tests/support/sim_store.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;
using State = Appearance::State;
using Names = std::vector<std::string>;

std::string url_of(const std::string& name) {
  return "sim://b/" + name;
}

class AppearanceTest : public testing::Test {
 protected:
  AppearanceTest() {
    settings_.root = folder_.path();
    // Removals of these names fail.
    settings_.fault = [this](test::SimRequest, const std::string& url) {
      const bool fails = std::any_of(failing_.begin(), failing_.end(),
                                     [&](const std::string& name) { return url == url_of(name); });
      return fails ? std::optional(ErrorCode::kNetwork) : std::nullopt;
    };
    store_ = &test::sim_store(settings_);
    fs::create_directories(folder_.path() / "b");
    for (const auto& [name, role] : std::map<std::string, Role>{{"seal", Role::kSeal},
                                                                {".metadata", Role::kLeader},
                                                                {"0.distcp", Role::kData},
                                                                {"config.json", Role::kCompanion}})
      show(name, role, false);
  }

  void show(const std::string& name, Role role, bool replaces) {
    test::write_file(folder_.path() / "b" / name, "x");
    files_.add(name, role, replaces);
    files_.set(name, State::kVisible);
  }
  // The names whose removal was asked for, in order.
  Names taken_back() {
    store_->take_requests();
    files_.take_back(*store_, &url_of);
    Names names;
    for (const auto& [request, url] : store_->take_requests())
      names.push_back(url.substr(url_of("").size()));
    return names;
  }

  test::TempDir folder_;
  test::SimSettings settings_;
  Names failing_;
  test::SimStore* store_ = nullptr;
  Appearance files_;
};

TEST_F(AppearanceTest, seals_go_first_and_data_last) {
  EXPECT_TRUE(files_.leads());
  const Names names = taken_back();
  ASSERT_EQ(names.size(), 4U);
  EXPECT_EQ(names[0], "seal");
  EXPECT_EQ(names[1], ".metadata");
  EXPECT_THAT(files_.names(), IsEmpty());
  EXPECT_FALSE(files_.leads());
  EXPECT_FALSE(files_.may_lead());
  EXPECT_THAT(taken_back(), IsEmpty());
}

TEST_F(AppearanceTest, what_may_be_led_to_stays) {
  files_.set(".metadata", State::kAsked);
  EXPECT_THAT(taken_back(), IsEmpty());
  EXPECT_FALSE(files_.leads());
  EXPECT_TRUE(files_.may_lead());
  // The same if it was made in place of an old one.
  show(".metadata", Role::kLeader, true);
  EXPECT_THAT(taken_back(), IsEmpty());
  EXPECT_TRUE(files_.leads());
  // If it is not there, it leads to nothing.
  files_.set(".metadata", State::kHidden);
  EXPECT_THAT(taken_back(), UnorderedElementsAre("seal", "0.distcp", "config.json"));
}

TEST_F(AppearanceTest, what_cannot_be_removed_is_known) {
  failing_ = {"0.distcp", "seal"};
  EXPECT_EQ(taken_back().size(), 4U);
  EXPECT_THAT(files_.names(), ElementsAre("0.distcp", "seal"));
  show(".metadata", Role::kLeader, false);
  failing_ = {".metadata"};
  EXPECT_THAT(taken_back(), ElementsAre(".metadata"));
  EXPECT_TRUE(files_.may_lead());
}

TEST_F(AppearanceTest, files_that_replaced_old_ones_stay) {
  show("0.distcp", Role::kData, true);
  EXPECT_THAT(taken_back(), UnorderedElementsAre("seal", ".metadata", "config.json"));
  EXPECT_THAT(files_.names(), ElementsAre("0.distcp"));
}

TEST_F(AppearanceTest, each_removal_is_tried) {
  failing_ = {"seal", "0.distcp"};
  std::optional<Error> why;
  EXPECT_THAT(remove_each(*store_, {"seal", "config.json", "0.distcp", "none"}, &url_of, why),
              ElementsAre("0.distcp", "seal"));
  ASSERT_TRUE(why);
  EXPECT_EQ(why->code(), ErrorCode::kNetwork);
  EXPECT_FALSE(fs::exists(folder_.path() / "b/config.json"));
  why.reset();
  EXPECT_THAT(remove_each(*store_, {}, &url_of, why), IsEmpty());
  EXPECT_FALSE(why);
}

TEST(Appearance, NamesTellTheOrder) {
  const auto seals = [](std::string_view name) { return name == "seal"; };
  for (const char* name : {".metadata", "a/.metadata", "__3.metadata",
                           "model.safetensors.index.json", "metadata.json", "metadata.pkl"})
    EXPECT_EQ(role_of(name, seals), Role::kLeader) << name;
  for (const char* name : {"__0_0.distcp", "a/b.safetensors", "a.pt", "a.pth", "a.bin"})
    EXPECT_EQ(role_of(name, seals), Role::kData) << name;
  EXPECT_EQ(role_of("a/seal", seals), Role::kSeal);
  EXPECT_EQ(role_of("seal", nullptr), Role::kCompanion);
  EXPECT_EQ(role_of("config.json", seals), Role::kCompanion);
}

TEST(Appearance, NamesOfManyFilesAreCounted) {
  EXPECT_EQ(quoted_names({}), "");
  EXPECT_EQ(quoted_names({"a", "b\n"}), "'a', 'b\\x0a'");
  const std::string many = quoted_names(Names(22, "a"));
  EXPECT_TRUE(many.ends_with("'a' and 2 more")) << many;
  EXPECT_EQ(std::count(many.begin(), many.end(), ','), 19);
}

}  // namespace
}  // namespace fsdp::formats
