// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/outputs/joined.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"
#include "formats/bytes/outputs/atomic_file.h"
#include "formats/bytes/outputs/atomic_folder.h"
#include "tests/support/sim_store.h"
#include "tests/support/temp_dir.h"
#include "tests/support/thread_team.h"

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
  const auto owner = new_shared_folder(dir / "out", {});
  const std::string invitation = owner->invitation();
  EXPECT_EQ(owner->invitation(), invitation);
  write(*JoinedFolder(dir / "out", invitation).add_file("b", true), "of another");
  write(owner->add_file("a"), "the owner's");
  EXPECT_FALSE(fs::exists(dir / "out"));
  owner->commit();
  EXPECT_EQ(content(dir / "out" / "a"), "the owner's");
  EXPECT_EQ(content(dir / "out" / "b"), "of another");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir / "out"), {}), 2);
}

TEST(JoinedFolder, a_folder_of_a_later_owner_is_not_joined) {
  const test::TempDir dir;
  std::string stale;
  {
    const auto first = new_shared_folder(dir / "out", {});
    stale = first->invitation();
  }
  EXPECT_EQ(code_of([&] { JoinedFolder(dir / "out", stale); }), ErrorCode::kNotFound);
  const auto second = new_shared_folder(dir / "out", {});
  second->invitation();
  EXPECT_EQ(code_of([&] { JoinedFolder(dir / "out", stale); }), ErrorCode::kNotFound);
}

TEST(JoinedFolder, what_a_guest_wrote_goes_with_the_folder_where_it_is_given_up) {
  const test::TempDir dir;
  {
    const auto owner = new_shared_folder(dir / "out", {});
    write(*JoinedFolder(dir / "out", owner->invitation()).add_file("b", false), "text");
  }
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(JoinedFolder, names_are_plain_and_used_once) {
  const test::TempDir dir;
  const auto owner = new_shared_folder(dir / "out", {});
  const JoinedFolder joined(dir / "out", owner->invitation());
  owner->add_file("a");
  EXPECT_EQ(code_of([&] { joined.add_file("a", false); }), ErrorCode::kExists);
  EXPECT_EQ(code_of([&] { joined.add_file("../a", false); }), ErrorCode::kPath);
  EXPECT_EQ(code_of([&] { JoinedFolder(dir / "out", "../x"); }), ErrorCode::kPath);
}

// Each member puts its letter behind those of the others.
void put_letter(Team& team, OutputFile& file) {
  file.reserve(team.size() + 1);
  file.write_at(0, std::as_bytes(std::span(std::string_view(team.leads() ? "#" : "x"))));
  const std::byte letter{static_cast<unsigned char>('a' + team.rank())};
  file.put_at(1 + team.rank(), std::span(&letter, 1));
}

TEST(JoinedOutput, a_team_writes_one_file) {
  test::TempDir folder;
  const auto errors = test::run_team(3, [&](Team& team) {
    OutputOptions options;
    options.make_folders = true;
    options.team = &team;
    const auto output = new_file(folder.path() / "new" / "out", options);
    put_letter(team, output->file());
    output->commit();
    EXPECT_EQ(content(folder.path() / "new" / "out"), "#abc");
  });
  EXPECT_THAT(errors, testing::Each(""));
}

TEST(JoinedOutput, a_team_writes_one_folder) {
  test::TempDir folder;
  const fs::path out = folder.path() / "out";
  const auto errors = test::run_team(3, [&](Team& team) {
    OutputOptions options;
    options.team = &team;
    options.seal = true;
    const auto output = new_folder(out, options);
    OutputFile& one = output->add_file("a.pt");
    OutputFile& two = output->add_file("inner/b.pt");
    team.exchange("files are made");
    put_letter(team, one);
    if (team.rank() != 1) two.put_at(0, std::as_bytes(std::span(std::string_view("same"))));
    output->commit();
  });
  EXPECT_THAT(errors, testing::Each(""));
  EXPECT_EQ(content(out / "a.pt"), "#abc");
  EXPECT_EQ(content(out / "inner" / "b.pt"), "same");
  EXPECT_TRUE(fs::exists(out / kSealName));
}

TEST(JoinedOutput, a_team_does_not_write_to_a_store) {
  test::TempDir folder;
  test::SimSettings settings;
  settings.root = folder.path();
  test::sim_store(settings);
  for (const bool is_folder : {false, true}) {
    const auto errors = test::run_team(2, [&](Team& team) {
      OutputOptions options;
      options.team = &team;
      if (is_folder) {
        new_folder("sim://bucket/out", options);
      } else {
        new_file("sim://bucket/out", options);
      }
    });
    EXPECT_THAT(
        errors,
        testing::Each("sim://bucket/out: several ranks can write together only to a local path"));
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(JoinedOutput, nothing_is_left_of_an_output_that_a_member_could_not_write) {
  test::TempDir folder;
  const auto errors = test::run_team(3, [&](Team& team) {
    OutputOptions options;
    options.team = &team;
    const auto output = new_file(folder.path() / "out", options);
    put_letter(team, output->file());
    if (team.rank() == 2) throw Error(ErrorCode::kNoSpace, "out: full");
    output->commit();
  });
  EXPECT_THAT(errors, testing::Each("rank 2: out: full"));
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(JoinedOutput, a_member_that_sees_another_folder_is_named) {
  test::TempDir folder;
  test::TempDir other;
  for (const bool file_there : {false, true}) {
    if (file_there) std::ofstream(other.path() / ".out.fsdp-tmp") << std::string(32, '0');
    const auto errors = test::run_team(2, [&](Team& team) {
      OutputOptions options;
      options.team = &team;
      const auto output = new_file((team.leads() ? folder : other).path() / "out", options);
      output->commit();
    });
    EXPECT_THAT(errors[0], testing::HasSubstr(file_there ? "is another one" : "is not there"));
    EXPECT_THAT(errors[0], testing::StartsWith("rank 1: "));
    EXPECT_EQ(errors[0], errors[1]);
    EXPECT_TRUE(fs::is_empty(folder.path()));
  }
}

TEST(JoinedOutput, what_the_leader_refuses_all_refuse) {
  test::TempDir folder;
  std::ofstream(folder.path() / "out") << "old";
  const auto errors = test::run_team(2, [&](Team& team) {
    OutputOptions options;
    options.team = &team;
    const auto output = new_file(folder.path() / "out", options);
  });
  EXPECT_THAT(errors, testing::Each(testing::EndsWith("out: exists")));
  EXPECT_EQ(content(folder.path() / "out"), "old");
}

}  // namespace
}  // namespace fsdp::formats
