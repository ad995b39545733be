// SPDX-License-Identifier: Apache-2.0
#include "formats/files/joined_folder.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/base/error.h"
#include "formats/files/atomic_directory.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

void write(OutputFile& file, std::string_view text) {
  file.write_at(0, std::as_bytes(std::span(text)));
  file.finish(true);
}

std::string content(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

ErrorCode code_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "nothing was thrown";
  return ErrorCode::kUsage;
}

TEST(JoinedFolder, files_of_others_appear_with_the_folder_and_the_invitation_does_not) {
  const test::TempDir dir;
  AtomicDirectory owner(dir / "out", {});
  const std::string invitation = owner.invitation();
  EXPECT_EQ(owner.invitation(), invitation);
  write(*JoinedFolder(dir / "out", invitation).add_file("b", true), "of another");
  write(owner.add_file("a"), "the owner's");
  EXPECT_FALSE(fs::exists(dir / "out"));
  owner.commit();
  EXPECT_EQ(content(dir / "out" / "a"), "the owner's");
  EXPECT_EQ(content(dir / "out" / "b"), "of another");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir / "out"), {}), 2);
}

TEST(JoinedFolder, a_folder_of_a_later_owner_is_not_joined) {
  const test::TempDir dir;
  std::string stale;
  {
    AtomicDirectory first(dir / "out", {});
    stale = first.invitation();
  }
  EXPECT_EQ(code_of([&] { JoinedFolder(dir / "out", stale); }), ErrorCode::kNotFound);
  AtomicDirectory second(dir / "out", {});
  second.invitation();
  EXPECT_EQ(code_of([&] { JoinedFolder(dir / "out", stale); }), ErrorCode::kNotFound);
}

TEST(JoinedFolder, what_a_guest_wrote_goes_with_the_folder_where_it_is_given_up) {
  const test::TempDir dir;
  {
    AtomicDirectory owner(dir / "out", {});
    write(*JoinedFolder(dir / "out", owner.invitation()).add_file("b", false), "text");
  }
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(JoinedFolder, names_are_plain_and_used_once) {
  const test::TempDir dir;
  AtomicDirectory owner(dir / "out", {});
  const JoinedFolder joined(dir / "out", owner.invitation());
  owner.add_file("a");
  EXPECT_EQ(code_of([&] { joined.add_file("a", false); }), ErrorCode::kExists);
  EXPECT_EQ(code_of([&] { joined.add_file("../a", false); }), ErrorCode::kPath);
  EXPECT_EQ(code_of([&] { JoinedFolder(dir / "out", "../x"); }), ErrorCode::kPath);
}

}  // namespace
}  // namespace fsdp::formats
