// SPDX-License-Identifier: Apache-2.0
#include "formats/families/checks/newer_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::int64_t kSecond = 1'000'000'000;
// The time at which .metadata was complete.
constexpr std::int64_t kSaved = 1'700'000'000 * kSecond;
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30U;

WrittenFile metadata() {
  return {".metadata", 1000, kSaved, kSaved - kSecond};
}

// Times in seconds after .metadata was complete.
WrittenFile data(const std::string& name, std::uint64_t bytes, double born, double modified) {
  const auto at = [](double seconds) {
    return kSaved + static_cast<std::int64_t>(seconds * static_cast<double>(kSecond));
  };
  return {name, bytes, at(modified), at(born)};
}

WrittenFile without_birth(WrittenFile file) {
  file.born_ns.reset();
  return file;
}

TEST(NewerData, data_written_before_metadata_are_none) {
  EXPECT_THAT(newer_than(metadata(), {data("a", 100, -5, -4), data("b", kGiB, -60, -0.001)}),
              IsEmpty());
  EXPECT_THAT(newer_than(metadata(), {data("a", 100, -5, 0)}), IsEmpty());
}

TEST(NewerData, a_file_overwritten_in_place_is_one) {
  EXPECT_THAT(newer_than(metadata(), {data("old", 100, -5, -4), data("new", 100, -5, 600)}),
              ElementsAre("new"));
  EXPECT_THAT(newer_than(metadata(), {data("soon", 100, -5, 2.5)}), ElementsAre("soon"));
  EXPECT_THAT(newer_than(metadata(), {data("a", 100, -5, 600), data("b", 100, -5, 600.5)}),
              ElementsAre("a", "b"));
  // All of them: the save ended before .metadata.
  EXPECT_THAT(newer_than(metadata(), {data("large", kGiB, -60, 3600)}), ElementsAre("large"));
}

TEST(NewerData, clocks_may_differ_by_a_second) {
  EXPECT_THAT(newer_than(metadata(), {data("a", 100, -5, 0.9)}), IsEmpty());
}

TEST(NewerData, a_file_written_afresh_after_a_pause_is_one) {
  EXPECT_THAT(newer_than(metadata(), {data("a", 100, 600, 600.1)}), ElementsAre("a"));
  EXPECT_THAT(newer_than(metadata(), {without_birth(data("a", 100, 0, 600))}), ElementsAre("a"));
}

TEST(NewerData, a_copy_that_begins_with_metadata_has_none) {
  std::vector<WrittenFile> files;
  double at = 0.01;
  for (int i = 0; i < 50; ++i) {
    files.push_back(data(std::to_string(i), kGiB, at, at + 20));
    at += 20.5;
  }
  EXPECT_THAT(newer_than(metadata(), files), IsEmpty());
  for (WrittenFile& file : files) file.born_ns.reset();
  EXPECT_THAT(newer_than(metadata(), files), IsEmpty());
}

TEST(NewerData, a_copy_by_several_processes_has_none) {
  EXPECT_THAT(
      newer_than(metadata(), {data("a", 10 * kGiB, -0.01, 300), data("b", 10 * kGiB, -0.02, 310)}),
      IsEmpty());
}

// cp -p, rsync -a, tar: created when they were copied, modified when the original was.
TEST(NewerData, times_taken_over_by_a_copy_tell_what_they_told) {
  EXPECT_THAT(newer_than(metadata(), {data("a", 100, 9000, -4)}), IsEmpty());
  EXPECT_THAT(newer_than(metadata(), {data("a", 100, 9000, 0.5), data("b", 100, 9000, 1.5)}),
              IsEmpty());
  EXPECT_THAT(newer_than(metadata(), {data("a", 100, 9000, 600)}), ElementsAre("a"));
}

TEST(NewerData, empty_files_say_nothing) {
  EXPECT_THAT(newer_than(metadata(), {data("a", 0, -5, 600)}), IsEmpty());
}

TEST(NewerData, of_a_folder_and_of_folders_in_it) {
  test::TempDir dir;
  const auto an_hour_ago = std::filesystem::file_time_type::clock::now() - std::chrono::hours(1);
  for (const char* folder : {"", "pytorch_model_fsdp_0"}) {
    std::filesystem::create_directories(dir / folder);
    for (const char* name : {".metadata", "__0_0.distcp", "notes.txt"})
      test::write_file(dir.path() / folder / name, "content");
  }
  EXPECT_THAT(newer_data(dir.path()), IsEmpty());
  std::filesystem::last_write_time(dir / "pytorch_model_fsdp_0/.metadata", an_hour_ago);
  const Findings findings = newer_data(dir.path());
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].code, ErrorCode::kNewerData);
  EXPECT_EQ(findings[0].severity, Finding::Severity::kWarning);
  EXPECT_EQ(findings[0].file, "pytorch_model_fsdp_0/__0_0.distcp");
  std::filesystem::last_write_time(dir / ".metadata", an_hour_ago);
  EXPECT_EQ(newer_data(dir.path()).size(), 2U);
  EXPECT_THAT(newer_data(dir / "none"), IsEmpty());
}

}  // namespace
}  // namespace fsdp::formats
