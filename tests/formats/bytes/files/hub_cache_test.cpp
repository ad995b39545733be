// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/files/hub_cache.h"

#include <gtest/gtest.h>

#include "formats/bytes/files/file.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::write_file;

class HubCache : public testing::Test {
 protected:
  HubCache() {
    fs::create_directories(repository_ / "blobs");
    fs::create_directories(snapshot_ / "unet");
    write_file(repository_ / "blobs/abc", "blob");
    write_file(dir_ / "secret", "secret");
  }
  // Opens a link in the snapshot that leads to `target`.
  std::shared_ptr<const File> open(const std::string& name, const fs::path& target) const {
    fs::remove(snapshot_ / name);
    fs::create_symlink(target, snapshot_ / name);
    return folder_at(snapshot_)->open_member_if_present(name);
  }
  void expect_refused(const std::string& name, const fs::path& target) const {
    SCOPED_TRACE(target);
    expect_error(ErrorCode::kPathEscape, "leads outside the folder", [&] { open(name, target); });
  }
  static std::string content_of(const File& file) {
    return test::to_text(read_bytes(file, 0, file.size()));
  }

  test::TempDir dir_;
  const fs::path cache_ = dir_ / "hub";
  const fs::path repository_ = cache_ / "models--org--name";
  const fs::path snapshot_ = repository_ / "snapshots/0123";
};

TEST_F(HubCache, links_into_blobs_are_files_of_the_snapshot) {
  EXPECT_EQ(content_of(*open("a", "../../blobs/abc")), "blob");
  EXPECT_EQ(content_of(*open("unet/a", "../../../blobs/abc")), "blob");
  // From a folder inside, and by a way with a link in it.
  EXPECT_EQ(content_of(*folder_at(snapshot_ / "unet")->open_member("a")), "blob");
  fs::create_directory_symlink(cache_, dir_ / "linked");
  const fs::path linked = dir_ / "linked/models--org--name/snapshots/0123";
  EXPECT_EQ(content_of(*folder_at(linked)->open_member("a")), "blob");
  EXPECT_EQ(folder_at(snapshot_)->open_member("a")->name(), (snapshot_ / "a").string());
  EXPECT_EQ(open("a", "../../blobs/none"), nullptr);
  fs::remove_all(repository_ / "blobs");
  EXPECT_EQ(open("a", "../../blobs/abc"), nullptr);
}

TEST_F(HubCache, other_links_out_of_the_folder_are_refused) {
  write_file(repository_ / "other", "x");
  fs::create_directories(repository_ / "blobs/deep");
  write_file(repository_ / "blobs/deep/abc", "x");
  fs::create_directories(dir_ / "blobs");
  write_file(dir_ / "blobs/abc", "x");
  for (const char* target : {"../../other", "../../blobs/../other", "../../blobs/deep/abc",
                             "../../../../secret", "../../../../blobs/abc", "../../blobs"}) {
    expect_refused("a", target);
  }
  expect_refused("a", repository_ / "blobs/abc");
  expect_refused("a", dir_ / "secret");
  expect_refused("unet/a", "../../../../../secret");
  // A blob that leads elsewhere.
  fs::create_symlink(dir_ / "secret", repository_ / "blobs/leads");
  expect_refused("a", "../../blobs/leads");
  fs::create_symlink("../../../secret", repository_ / "blobs/leads_too");
  expect_refused("a", "../../blobs/leads_too");
  // A folder of blobs that is elsewhere.
  fs::remove_all(repository_ / "blobs");
  fs::create_directory_symlink(dir_ / "blobs", repository_ / "blobs");
  expect_refused("a", "../../blobs/abc");
}

TEST_F(HubCache, repositories_share_blobs_in_a_marked_folder) {
  fs::create_directories(cache_ / "blobs/ab");
  write_file(cache_ / "blobs/ab/abcd", "shared");
  fs::create_symlink("../../blobs/ab/abcd", repository_ / "blobs/link");
  expect_refused("a", "../../blobs/link");
  write_file(cache_ / "blobs/.huggingface-shared-blobs", "1\n");
  EXPECT_EQ(content_of(*open("a", "../../blobs/link")), "shared");
  fs::create_symlink("../../secret", repository_ / "blobs/out");
  expect_refused("a", "../../blobs/out");
  fs::create_symlink("../../blobs/ab/none", repository_ / "blobs/gone");
  EXPECT_EQ(open("a", "../../blobs/gone"), nullptr);
}

TEST_F(HubCache, a_folder_that_is_not_in_a_snapshot_has_no_blobs) {
  fs::create_directories(repository_ / "revisions/0123");
  fs::create_symlink("../../blobs/abc", repository_ / "revisions/0123/a");
  EXPECT_FALSE(blob_of_link(repository_ / "revisions/0123", "a"));
  expect_error(ErrorCode::kPathEscape, "leads outside the folder",
               [&] { folder_at(repository_ / "revisions/0123")->open_member("a"); });
  EXPECT_FALSE(blob_of_link(snapshot_, "none"));
}

}  // namespace
}  // namespace fsdp::formats
