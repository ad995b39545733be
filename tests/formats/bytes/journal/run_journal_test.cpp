// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/journal/run_journal.h"

#include <fcntl.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"
#include "formats/bytes/journal/journal_file.h"
#include "formats/bytes/outputs/atomic_file.h"
#include "formats/bytes/outputs/atomic_folder.h"
#include "tests/support/temp_dir.h"
#include "tests/support/thread_team.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr std::uint64_t kExtent = 8;

std::shared_ptr<RunJournal> journal(const std::string& plan, bool asked,
                                    Team* team = &this_process()) {
  auto identity = std::make_shared<PlanIdentity>();
  identity->add("argument", plan);
  return std::make_shared<RunJournal>(identity, RunJournal::Options{asked, kExtent, team});
}

OutputOptions with(std::shared_ptr<RunJournal> journal, Team* team = &this_process()) {
  OutputOptions options;
  options.team = team;
  options.journal = std::move(journal);
  return options;
}

// Writes bytes and enters them.
void put(RunJournal& journal, OutputFile& file, std::uint64_t offset, std::string_view text) {
  file.put_at(offset, std::as_bytes(std::span(text)));
  JournalEntry entry;
  entry.runs.push_back({file.member(), offset, text.size(), 7});
  entry.unchecked_bytes = text.size();
  entry.reads = "0 ";
  journal.add(std::move(entry), {&file});
}

std::vector<std::uint64_t> offsets_of(const RunJournal& journal) {
  std::vector<std::uint64_t> offsets;
  for (const JournalEntry& entry : journal.found()) {
    for (const JournalEntry::Run& run : entry.runs) offsets.push_back(run.offset);
  }
  return offsets;
}

std::vector<std::string> names_at(const fs::path& path) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path)) names.push_back(entry.path().filename());
  return names;
}

class Journal : public testing::Test {
 protected:
  // Leaves what a run with --resume does that is ended after two extents and a half.
  void leave(const std::string& plan) const {
    const auto own = journal(plan, true);
    const auto output = new_file(out_, with(own));
    put(*own, output->file(), 0, "12345678");
    put(*own, output->file(), 8, "12345678");
    put(*own, output->file(), 16, "123");
  }

  test::TempDir dir_;
  fs::path out_ = dir_ / "out";
};

TEST_F(Journal, a_later_run_finds_whole_extents_and_the_bytes) {
  leave("a");
  EXPECT_THAT(names_at(dir_.path()), UnorderedElementsAre(".out.fsdp-tmp", ".out.fsdp-journal"));
  const auto own = journal("a", true);
  const auto output = new_file(out_, with(own));
  EXPECT_THAT(offsets_of(*own), ElementsAre(0, 8));
  EXPECT_EQ(own->found()[0].unchecked_bytes, 8U);
  EXPECT_EQ(own->found()[1].runs[0].crc, 7U);
  put(*own, output->file(), 16, "the end.");
  output->commit();
  EXPECT_THAT(names_at(dir_.path()), ElementsAre("out"));
  std::ifstream in(out_);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), "1234567812345678the end.");
}

TEST_F(Journal, a_run_that_is_not_asked_removes_it_and_leaves_nothing_after_an_error) {
  leave("a");
  {
    const auto own = journal("a", false);
    const auto output = new_file(out_, with(own));
    EXPECT_THAT(own->found(), IsEmpty());
    put(*own, output->file(), 0, "12345678");
  }
  EXPECT_THAT(names_at(dir_.path()), IsEmpty());
  leave("a");
  { const auto output = new_file(out_, {}); }
  EXPECT_THAT(names_at(dir_.path()), IsEmpty());
}

TEST_F(Journal, nothing_stays_that_has_no_extent) {
  { const auto output = new_file(out_, with(journal("a", true))); }
  EXPECT_THAT(names_at(dir_.path()), IsEmpty());
}

TEST_F(Journal, another_plan_is_refused_by_what_differs_and_changes_nothing) {
  leave("a");
  try {
    const auto output = new_file(out_, with(journal("b", true)));
    ADD_FAILURE() << "was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    EXPECT_THAT(error.what(), HasSubstr("belong to another run: argument is 'b', was 'a'"));
    EXPECT_EQ(error.hint().remedy, Remedy::kStartAnew);
  }
  const auto own = journal("a", true);
  const auto output = new_file(out_, with(own));
  EXPECT_THAT(offsets_of(*own), ElementsAre(0, 8));
}

TEST_F(Journal, that_of_another_temporary_is_not_taken) {
  leave("a");
  fs::remove(dir_ / ".out.fsdp-tmp");
  std::ofstream(dir_ / ".out.fsdp-tmp") << "of another program";
  const auto own = journal("a", true);
  const auto output = new_file(out_, with(own));
  EXPECT_THAT(own->found(), IsEmpty());
  output->commit();
  EXPECT_EQ(fs::file_size(out_), 0U);
  EXPECT_THAT(names_at(dir_.path()), ElementsAre("out"));
}

TEST_F(Journal, of_a_folder_keeps_the_files_that_have_something) {
  const auto write = [&](const std::string& text) {
    const auto own = journal("a", true);
    const auto output = new_folder(out_, with(own));
    put(*own, output->add_file("kept"), 0, text);
    put(*own, output->add_file("in/kept"), 0, text);
    output->add_file("lost").put_at(0, std::as_bytes(std::span(text)));
    output->add_file("void/lost");
    return offsets_of(*own).size();
  };
  EXPECT_EQ(write("12345678"), 0U);
  const auto own = journal("a", true);
  const auto output = new_folder(out_, with(own));
  EXPECT_THAT(names_at(dir_ / ".out.fsdp-tmp"), UnorderedElementsAre("kept", "in"));
  EXPECT_THAT(names_at(dir_ / ".out.fsdp-tmp" / "in"), ElementsAre("kept"));
  EXPECT_EQ(own->found().size(), 2U);
  output->add_file("in/kept");
  output->add_file("kept");
  EXPECT_THROW(output->add_file("kept"), Error);
  output->add_file("lost");
  output->commit();
  EXPECT_EQ(fs::file_size(out_ / "in" / "kept"), 8U);
  EXPECT_EQ(fs::file_size(out_ / "lost"), 0U);
}

TEST_F(Journal, a_file_that_is_kept_but_not_of_the_output_is_not_published) {
  const auto write = [&](const std::string& name) {
    const auto own = journal("a", true);
    const auto output = new_folder(out_, with(own));
    put(*own, output->add_file(name), 0, "12345678");
    if (name == "own") output->commit();
  };
  write("stranger");
  try {
    write("own");
    ADD_FAILURE() << "was published";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    EXPECT_THAT(error.what(), HasSubstr("out: 'stranger' was kept from an earlier run"));
  }
  EXPECT_FALSE(fs::exists(out_));
}

TEST_F(Journal, a_record_that_makes_no_sense_is_refused) {
  leave("a");
  const fs::path path = dir_ / ".out.fsdp-journal" / "rank-0";
  append_record(FileDescriptor(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC)), "no entry",
                "j");
  try {
    const auto output = new_file(out_, with(journal("a", true)));
    ADD_FAILURE() << "was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    EXPECT_THAT(error.what(),
                HasSubstr("'.out.fsdp-journal/rank-0' beside it: the journal is damaged: "));
    EXPECT_EQ(error.hint().remedy, Remedy::kStartAnew);
  }
}

TEST_F(Journal, members_of_a_team_have_their_own_and_find_all) {
  const auto run = [&](std::size_t ranks, std::size_t found) {
    return test::run_team(ranks, [&](Team& team) {
      const auto own = journal("a", true, &team);
      const auto output = new_file(out_, with(own, &team));
      EXPECT_EQ(own->found().size(), found);
      put(*own, output->file(), 8 * (found + team.rank()), "12345678");
      team.exchange("written");
      throw Error(ErrorCode::kInterrupted, "interrupted");
    });
  };
  EXPECT_THAT(run(3, 0), Each("interrupted"));
  EXPECT_THAT(run(2, 3), Each("interrupted"));
  const auto own = journal("a", true);
  const auto output = new_file(out_, with(own));
  EXPECT_THAT(offsets_of(*own), UnorderedElementsAre(0, 8, 16, 24, 32));
}

TEST(RunJournal, Room) {
  const RunJournal journal(nullptr, {false, 1000});
  EXPECT_EQ(journal.room(1), 1000U);
  // An fsync of each of many files is worth more bytes.
  EXPECT_EQ(journal.room(256), 2000U);
  EXPECT_EQ(journal.room(100'000), 16'000U);
}

}  // namespace
}  // namespace fsdp::formats
