// SPDX-License-Identifier: Apache-2.0
#include "tools/base/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/front/open.h"
#include "tests/support/thread_team.h"
#include "tests/tools/run_cli.h"

namespace fsdp::cli {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Each;
using testing::EndsWith;
using testing::StartsWith;

class Agreement : public CliTest {
 protected:
  // The errors of two ranks that open checkpoints under the same name.
  static std::vector<std::string> compared(const std::string& one, const std::string& other) {
    return test::run_team(2, [&](formats::Team& team) {
      const std::string& path = team.leads() ? one : other;
      CommonOptions common;
      common.team = &team;
      agree_on_source(common, path, *formats::open_checkpoint(path));
    });
  }
};

TEST_F(Agreement, a_checkpoint_is_the_same_under_another_path_but_not_with_other_times) {
  const std::string one = copy_of("2.11.0/nested/ckpt", "one");
  fs::create_directory_symlink(one, path("link"));
  EXPECT_THAT(compared(one, path("link")), Each(""));
  const std::string other = copy_of("2.11.0/nested/ckpt", "other");
  for (const auto& entry : fs::recursive_directory_iterator(one))
    fs::last_write_time(fs::path(other) / fs::relative(entry.path(), one),
                        fs::last_write_time(entry.path()));
  EXPECT_THAT(compared(one, other), Each(""));
  fs::last_write_time(fs::path(other) / "__0_0.distcp", fs::file_time_type::clock::now());
  EXPECT_THAT(compared(one, other), Each(AllOf(StartsWith("rank 1 sees another checkpoint at "),
                                               EndsWith(" than rank 0"))));
}

TEST_F(Agreement, arguments_are_compared_word_by_word) {
  const auto errors = test::run_team(3, [](formats::Team& team) {
    agree_on_start(team, team.rank() == 2 ? std::vector<std::string>{"a b"}
                                          : std::vector<std::string>{"a", "b"});
  });
  EXPECT_THAT(errors, Each("rank 2 has other arguments than rank 0"));
}

}  // namespace
}  // namespace fsdp::cli
