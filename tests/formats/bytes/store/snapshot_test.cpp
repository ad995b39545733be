// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/store/snapshot.h"

#include <gtest/gtest.h>

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

class SnapshotTest : public testing::Test {
 protected:
  SnapshotTest() : store_(sim_store(settings())) {
    fs::create_directories(dir_ / "b/run/inner");
    write_file(dir_ / "b/run/.metadata", "m");
    write_file(dir_ / "b/run/__0_0.distcp", "data");
    write_file(dir_ / "b/run/inner/x", "x");
    store_.take_requests();
  }
  fsdp::test::SimSettings settings() const { return {.root = dir_.path(), .fault = {}}; }

  TempDir dir_;
  fsdp::test::SimStore& store_;
};

TEST_F(SnapshotTest, a_listing_answers_for_files_and_folders) {
  const auto listing = list_stored("sim://b/run");
  EXPECT_TRUE(listing->whole);
  ASSERT_EQ(listing->entries.size(), 3U);
  ASSERT_NE(listing->file("__0_0.distcp"), nullptr);
  EXPECT_EQ(listing->file("__0_0.distcp")->bytes, 4U);
  EXPECT_EQ(listing->file("inner"), nullptr);
  EXPECT_TRUE(listing->has_folder("inner"));
  EXPECT_FALSE(listing->has_folder(".metadata"));
  EXPECT_TRUE(list_stored("sim://b/none")->entries.empty());
}

TEST_F(SnapshotTest, answers_are_kept_while_a_session_lasts) {
  {
    const StoreSession session;
    const StoreSession inner;
    for (int i = 0; i < 3; ++i) {
      list_stored("sim://b/run");
      EXPECT_TRUE(find_stored("sim://b/run/.metadata"));
      EXPECT_FALSE(find_stored("sim://b/run/none"));
      EXPECT_EQ(kind_in_store("sim://b/run/inner"), PlaceKind::kFolder);
    }
    EXPECT_EQ(store_.take_requests().size(), 1U);  // the list says everything
    EXPECT_FALSE(find_stored("sim://b/other"));
    EXPECT_FALSE(find_stored("sim://b/other"));
    EXPECT_EQ(store_.take_requests().size(), 1U);
    write_file(dir_ / "b/other", "o");
    EXPECT_FALSE(find_stored("sim://b/other"));
    EXPECT_EQ(store_.take_requests().size(), 0U);
  }
  EXPECT_TRUE(find_stored("sim://b/other"));
  EXPECT_TRUE(find_stored("sim://b/other"));
  EXPECT_EQ(store_.take_requests().size(), 2U);
}

TEST_F(SnapshotTest, a_server_that_cannot_list_is_asked_for_the_files_that_tell) {
  auto blind = settings();
  blind.lists = false;
  store_.set(blind);
  const StoreSession session;
  const auto listing = list_stored("sim://b/run");
  EXPECT_FALSE(listing->whole);
  ASSERT_EQ(listing->entries.size(), 1U);
  EXPECT_EQ(listing->entries[0].name, ".metadata");
  EXPECT_EQ(kind_in_store("sim://b/run"), PlaceKind::kFolder);
  EXPECT_EQ(kind_in_store("sim://b/run/__0_0.distcp"), PlaceKind::kFile);
  EXPECT_EQ(kind_in_store("sim://b/run/inner"), PlaceKind::kNothing);
  // What the list does not have may be there.
  EXPECT_TRUE(find_stored("sim://b/run/__0_0.distcp"));
}

TEST_F(SnapshotTest, an_answer_that_failed_is_not_kept) {
  const StoreSession session;
  auto failing = settings();
  failing.fault = [](SimRequest, const std::string&) { return std::optional(ErrorCode::kNetwork); };
  store_.set(failing);
  expect_error(ErrorCode::kNetwork, "sim://b/run", [] { list_stored("sim://b/run"); });
  expect_error(ErrorCode::kNetwork, "sim://b/x", [] { find_stored("sim://b/x"); });
  failing.lists = false;
  store_.set(failing);
  expect_error(ErrorCode::kNetwork, "sim://b/run", [] { list_stored("sim://b/run"); });
  store_.set(settings());
  EXPECT_EQ(list_stored("sim://b/run")->entries.size(), 3U);
  EXPECT_FALSE(find_stored("sim://b/x"));
}

TEST_F(SnapshotTest, a_url_of_no_store_is_an_error) {
  expect_error(ErrorCode::kUsage, "none://b/x: URLs of this kind cannot be read",
               [] { find_stored("none://b/x"); });
}

}  // namespace
}  // namespace fsdp::formats
