// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/store/place.h"

#include <gtest/gtest.h>

#include "formats/bytes/store/snapshot.h"
#include "tests/support/expect_error.h"
#include "tests/support/sim_store.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;
using fsdp::test::expect_error;
using fsdp::test::sim_store;
using fsdp::test::SimRequest;
using fsdp::test::TempDir;
using fsdp::test::write_file;

class PlaceTest : public testing::Test {
 protected:
  PlaceTest() : store_(sim_store({.root = dir_.path(), .fault = {}})) {
    fs::create_directories(dir_ / "bucket/run/step-1");
    write_file(dir_ / "bucket/run/full.pt", "12345");
    write_file(dir_ / "bucket/run/step-1/.metadata", "m");
  }

  TempDir dir_;
  fsdp::test::SimStore& store_;
};

TEST_F(PlaceTest, parts_of_a_url_are_those_of_a_path_below_its_root) {
  EXPECT_TRUE(in_store("sim://bucket/a"));
  EXPECT_FALSE(in_store("/bucket/a"));
  EXPECT_FALSE(in_store("none://bucket/a"));
  const std::vector<std::array<const char*, 4>> cases = {
      // url, without slashes at its end, folder, name
      {"sim://bucket/run/step-1", "sim://bucket/run/step-1", "sim://bucket/run", "step-1"},
      {"sim://bucket/run//", "sim://bucket/run", "sim://bucket", "run"},
      {"sim://bucket/run", "sim://bucket/run", "sim://bucket", "run"},
      {"sim://bucket/", "sim://bucket", "sim://bucket", "bucket"},
      {"sim://bucket", "sim://bucket", "sim://bucket", "bucket"},
      {"sim://bucket/a=1/b c", "sim://bucket/a=1/b c", "sim://bucket/a=1", "b c"}};
  for (const auto& [url, whole, folder, name] : cases) {
    EXPECT_EQ(url_of(url), whole);
    EXPECT_EQ(folder_of_place(url), folder) << url;
    EXPECT_EQ(name_of_place(url), name) << url;
  }
  EXPECT_EQ(folder_of_place("runs/a"), "runs");
  EXPECT_EQ(folder_of_place("a"), ".");
  EXPECT_EQ(name_of_place("runs/a/"), "a");
}

TEST_F(PlaceTest, what_is_there_is_told_of_both_kinds) {
  EXPECT_EQ(kind_of_place("sim://bucket/run"), PlaceKind::kFolder);
  EXPECT_EQ(kind_of_place("sim://bucket/run/"), PlaceKind::kFolder);
  EXPECT_EQ(kind_of_place("sim://bucket"), PlaceKind::kFolder);
  EXPECT_EQ(kind_of_place("sim://bucket/run/full.pt"), PlaceKind::kFile);
  EXPECT_EQ(kind_of_place("sim://bucket/run/full.pt/"), PlaceKind::kNothing);
  EXPECT_EQ(kind_of_place("sim://bucket/none"), PlaceKind::kNothing);
  EXPECT_EQ(bytes_at("sim://bucket/run/full.pt"), 5U);
  EXPECT_EQ(bytes_at("sim://bucket/run"), std::nullopt);
  EXPECT_TRUE(exists_in_store("sim://bucket/run"));
  EXPECT_TRUE(exists_in_store("sim://bucket/run/full.pt"));
  EXPECT_FALSE(exists_in_store("sim://bucket/run/full"));

  const fs::path local = dir_ / "bucket/run";
  fs::create_symlink("full.pt", local / "link");
  EXPECT_TRUE(is_folder(local));
  EXPECT_TRUE(is_regular(local / "link"));
  EXPECT_EQ(kind_of_place_itself(local / "link"), PlaceKind::kOther);
  EXPECT_EQ(kind_of_place(local / "full.pt/inner"), PlaceKind::kNothing);
  EXPECT_EQ(bytes_at(local / "full.pt"), 5U);
  EXPECT_EQ(bytes_at(local / "none"), std::nullopt);
}

TEST_F(PlaceTest, a_name_like_that_of_a_file_is_looked_up_before_a_folder_is_listed) {
  store_.take_requests();
  EXPECT_TRUE(is_regular("sim://bucket/run/full.pt"));
  EXPECT_EQ(store_.count(SimRequest::kFind), 1U);
  EXPECT_EQ(store_.count(SimRequest::kList), 0U);
  store_.take_requests();
  EXPECT_TRUE(is_folder("sim://bucket/run"));
  EXPECT_EQ(store_.count(SimRequest::kFind), 0U);
  EXPECT_EQ(store_.count(SimRequest::kList), 1U);
}

TEST_F(PlaceTest, a_store_that_refuses_is_not_a_place_without_files) {
  store_.set({.root = dir_.path(), .fault = [](SimRequest, const std::string&) {
                return std::optional(ErrorCode::kAccess);
              }});
  expect_error(ErrorCode::kAccess, "sim://bucket/run",
               [] { static_cast<void>(kind_of_place("sim://bucket/run")); });
  store_.set({.root = dir_.path(), .fault = {}});
}

}  // namespace
}  // namespace fsdp::formats
