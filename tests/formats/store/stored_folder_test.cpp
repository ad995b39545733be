// SPDX-License-Identifier: Apache-2.0
#include "formats/store/stored_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/sim_store.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;
using fsdp::test::expect_error;
using fsdp::test::sim_store;
using fsdp::test::TempDir;
using fsdp::test::write_file;
using testing::ElementsAre;

class StoredFolderTest : public testing::Test {
 protected:
  StoredFolderTest() : store_(sim_store(settings())) {
    fs::create_directories(dir_ / "b/run/a/deep");
    write_file(dir_ / "b/run/.metadata", "m");
    write_file(dir_ / "b/run/a/1", "1");
    write_file(dir_ / "b/run/a/deep/2", "2");
    store_.take_requests();
  }
  fsdp::test::SimSettings settings() const { return {.root = dir_.path(), .fault = {}}; }

  TempDir dir_;
  fsdp::test::SimStore& store_;
};

TEST_F(StoredFolderTest, a_member_is_the_same_source_each_time) {
  StoredFolder folder("sim://b/run");
  const auto first = folder.open(".metadata");
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->size(), 1U);
  write_file(dir_ / "b/run/.metadata", "other");
  EXPECT_EQ(folder.open(".metadata"), first);
  EXPECT_EQ(folder.open("a/1")->url(), "sim://b/run/a/1");
  EXPECT_EQ(folder.open("none"), nullptr);
  EXPECT_EQ(folder.open("a"), nullptr);
}

TEST_F(StoredFolderTest, a_list_that_was_asked_for_saves_requests) {
  StoredFolder folder("sim://b/run");
  EXPECT_FALSE(folder.is_known_folder("a"));
  EXPECT_THAT(folder.names(), ElementsAre(".metadata", "a"));
  EXPECT_TRUE(folder.is_known_folder("a"));
  EXPECT_TRUE(folder.is_folder("a"));
  EXPECT_FALSE(folder.is_folder(".metadata"));
  EXPECT_NE(folder.open(".metadata"), nullptr);
  EXPECT_EQ(folder.open("none"), nullptr);
  EXPECT_EQ(store_.take_requests().size(), 1U);
}

TEST_F(StoredFolderTest, files_of_subfolders_are_listed_within_limits) {
  StoredFolder folder("sim://b/run");
  EXPECT_THAT(folder.files(10, 16), ElementsAre(".metadata", "a/1", "a/deep/2"));
  expect_error(ErrorCode::kLimitEntries, "sim://b/run: holds more than 2 files",
               [&] { folder.files(2, 16); });
  expect_error(ErrorCode::kLimitDepth, "sim://b/run/a/deep/: lies more than 1 folders deep",
               [&] { folder.files(10, 1); });
}

TEST_F(StoredFolderTest, a_server_that_cannot_list_has_the_members_that_are_known) {
  auto blind = settings();
  blind.lists = false;
  store_.set(blind);
  StoredFolder folder("sim://b/run");
  EXPECT_THAT(folder.names(), ElementsAre(".metadata"));
  EXPECT_NE(folder.open("a/1"), nullptr);
  expect_error(ErrorCode::kUnsupported, "sim://b/run/: the server cannot list folders",
               [&] { folder.files(10, 16); });
  StoredFolder nothing("sim://b/run/a");
  expect_error(ErrorCode::kUnsupported, "sim://b/run/a: the server cannot list folders, and none",
               [&] { nothing.names(); });
}

}  // namespace
}  // namespace fsdp::formats
