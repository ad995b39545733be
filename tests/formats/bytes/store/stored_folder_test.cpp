// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/store/stored_folder.h"

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
  const auto first = folder.open_member_if_present(".metadata");
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->size(), 1U);
  write_file(dir_ / "b/run/.metadata", "other");
  EXPECT_EQ(folder.open_member_if_present(".metadata"), first);
  EXPECT_EQ(folder.open_member_if_present("a/1")->name(), "sim://b/run/a/1");
  EXPECT_EQ(folder.open_member_if_present("none"), nullptr);
  EXPECT_EQ(folder.open_member_if_present("a"), nullptr);
  for (const char* path : {"../run/a/1", "/a", "a/../.metadata"})
    expect_error(ErrorCode::kPathEscape, "leads outside", [&] { folder.open_member(path); });
  for (const char* path : {"a//1", "a/./1", "a/"})
    expect_error(ErrorCode::kPath, "has a part without a name", [&] { folder.open_member(path); });
}

TEST_F(StoredFolderTest, a_list_that_was_asked_for_saves_requests) {
  StoredFolder folder("sim://b/run");
  EXPECT_THAT(folder.list(), ElementsAre(".metadata", "a"));
  expect_error(ErrorCode::kPath, "is a folder", [&] { folder.open_member("a"); });
  EXPECT_TRUE(folder.is_folder("a"));
  EXPECT_FALSE(folder.is_folder(".metadata"));
  EXPECT_NE(folder.open_member_if_present(".metadata"), nullptr);
  EXPECT_EQ(folder.open_member_if_present("none"), nullptr);
  EXPECT_EQ(store_.take_requests().size(), 1U);
}

TEST_F(StoredFolderTest, files_of_subfolders_are_listed_within_limits) {
  StoredFolder folder("sim://b/run");
  EXPECT_THAT(folder.list_files(), ElementsAre(".metadata", "a/1", "a/deep/2"));
  fs::path deep = dir_ / "b/run/deep";
  for (int i = 0; i < 16; ++i) deep /= "x";
  fs::create_directories(deep);
  write_file(deep / "y", "y");
  StoredFolder deeper("sim://b/run");
  expect_error(ErrorCode::kLimitDepth, "lies more than 16 folders deep",
               [&] { deeper.list_files(); });
}

TEST_F(StoredFolderTest, a_server_that_cannot_list_has_the_members_that_are_known) {
  auto blind = settings();
  blind.lists = false;
  store_.set(blind);
  StoredFolder folder("sim://b/run");
  EXPECT_THAT(folder.list(), ElementsAre(".metadata"));
  EXPECT_NE(folder.open_member_if_present("a/1"), nullptr);
  expect_error(ErrorCode::kUnsupported, "sim://b/run/: the server cannot list folders",
               [&] { folder.list_files(); });
  StoredFolder nothing("sim://b/run/a");
  expect_error(ErrorCode::kUnsupported,
               "sim://b/run/a: the server cannot list folders, and the folder has none",
               [&] { nothing.list(); });
}

}  // namespace
}  // namespace fsdp::formats
