// SPDX-License-Identifier: Apache-2.0
#include "formats/families/checks/content_check.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/front/open.h"
#include "formats/state/content/content.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"
#include "tests/support/thread_team.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

CopyCheck checked(const std::string& path, LibraryTensors library_tensors, Team& team) {
  const auto checkpoint = open_checkpoint(path);
  return check_before_copy(*checkpoint, content_of(*checkpoint), nullptr, library_tensors, team);
}

std::vector<std::size_t> numbers_of(const CopyCheck& check) {
  std::vector<std::size_t> numbers;
  for (const auto& [number, object] : check.objects) numbers.push_back(number);
  return numbers;
}

// Optimizer states that torchao computes, which a .pt file can keep.
TEST(ContentCheck, members_of_a_team_learn_what_one_process_finds) {
  const std::string path = test::data_path("golden/frameworks/torchao_adamw8bit_w2/ckpt");
  for (const LibraryTensors how : {LibraryTensors::kRefused, LibraryTensors::kKept}) {
    const CopyCheck alone = checked(path, how, this_process());
    EXPECT_FALSE(alone.computed.empty() && alone.objects.empty());
    for (const std::size_t ranks : {2, 3, 50}) {
      const auto errors = test::run_team(ranks, [&](Team& team) {
        const CopyCheck check = checked(path, how, team);
        EXPECT_EQ(check.computed, alone.computed);
        EXPECT_EQ(numbers_of(check), numbers_of(alone));
      });
      EXPECT_THAT(errors, testing::Each(""));
    }
  }
}

// Every chunk of a file is damaged: that of the first tensor is named, whoever looked at it.
TEST(ContentCheck, members_of_a_team_meet_the_error_of_one_process) {
  const test::TempDir folder;
  const std::string path = folder / "ckpt";
  fs::copy(test::data_path("golden/2.15.0/fsdp2/ckpt"), path, fs::copy_options::recursive);
  const fs::path member = path + "/__1_0.distcp";
  fs::permissions(member, fs::perms::owner_all);
  const auto bytes = fs::file_size(member);
  std::ofstream(member, std::ios::trunc) << std::string(bytes, 'x');
  std::string alone;
  try {
    checked(path, LibraryTensors::kRefused, this_process());
  } catch (const Error& error) {
    alone = error.what();
  }
  ASSERT_THAT(alone, testing::HasSubstr("__1_0.distcp"));
  for (const std::size_t ranks : {2, 3, 50}) {
    const auto errors =
        test::run_team(ranks, [&](Team& team) { checked(path, LibraryTensors::kRefused, team); });
    EXPECT_THAT(errors, testing::Each(alone));
  }
}

}  // namespace
}  // namespace fsdp::formats
