// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/outputs/removal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;
using test::write_file;
using testing::HasSubstr;

class RemovalTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(at("deep/step-1/inner"));
    write_file(at("deep/step-1/a"), "a");
    write_file(at("deep/step-1/inner/b"), "bb");
    write_file(at("beside"), "stays");
  }
  fs::path at(const std::string& name) const { return folder_ / name; }
  ErrorCode code_of_removal(const RunFolder& run, const RemovableState& state) const {
    try {
      run.remove("deep/step-1", state);
    } catch (const Error& error) {
      return error.code();
    }
    ADD_FAILURE() << "was removed";
    return ErrorCode::kUsage;
  }
  test::TempDir folder_;
};

TEST_F(RemovalTest, a_folder_goes_with_all_that_is_in_it) {
  const RunFolder run(folder_.path());
  const RemovableState state = run.state("deep/step-1");
  ASSERT_EQ(state.size(), 4U);
  EXPECT_EQ(state[0].name, "");
  EXPECT_EQ(state[3].name, "inner/b");
  EXPECT_EQ(state[3].bytes, 2U);
  run.remove("deep/step-1", state);
  EXPECT_TRUE(fs::is_empty(at("deep")));
  EXPECT_TRUE(fs::exists(at("beside")));
  run.remove("deep/step-1", state);
}

TEST_F(RemovalTest, what_was_written_to_meanwhile_stays) {
  const RunFolder run(folder_.path());
  const RemovableState state = run.state("deep/step-1");
  write_file(at("deep/step-1/inner/b"), "longer");
  EXPECT_EQ(code_of_removal(run, state), ErrorCode::kChanged);
  EXPECT_EQ(run.state("deep/step-1").size(), 4U);

  const RemovableState later = run.state("deep/step-1");
  write_file(at("deep/step-1/inner/new"), "");
  EXPECT_EQ(code_of_removal(run, later), ErrorCode::kChanged);
  EXPECT_TRUE(fs::exists(at("deep/step-1/inner/new")));
}

TEST_F(RemovalTest, what_was_replaced_meanwhile_stays) {
  const RunFolder run(folder_.path());
  const RemovableState state = run.state("deep/step-1");
  fs::rename(at("deep/step-1"), at("old"));
  fs::copy(at("old"), at("deep/step-1"), fs::copy_options::recursive);
  EXPECT_EQ(code_of_removal(run, state), ErrorCode::kChanged);
  fs::remove_all(at("deep/step-1"));
  fs::create_directory_symlink(at("old"), at("deep/step-1"));
  EXPECT_EQ(code_of_removal(run, state), ErrorCode::kChanged);
  EXPECT_TRUE(fs::exists(at("old/inner/b")));
}

TEST_F(RemovalTest, links_are_removed_and_not_followed) {
  fs::create_directory(at("elsewhere"));
  write_file(at("elsewhere/precious"), "x");
  fs::create_directory_symlink(at("elsewhere"), at("deep/step-1/link"));
  const RunFolder run(folder_.path());
  run.remove("deep/step-1", run.state("deep/step-1"));
  EXPECT_TRUE(fs::exists(at("elsewhere/precious")));
  EXPECT_FALSE(fs::exists(at("deep/step-1")));
}

TEST_F(RemovalTest, a_link_on_the_way_is_not_followed) {
  const RunFolder run(folder_.path());
  const RemovableState state = run.state("deep/step-1");
  fs::rename(at("deep"), at("moved"));
  fs::create_directory_symlink(at("moved"), at("deep"));
  EXPECT_EQ(code_of_removal(run, state), ErrorCode::kNotFound);
  EXPECT_TRUE(fs::exists(at("moved/step-1/a")));
}

TEST_F(RemovalTest, a_rest_of_a_killed_run_is_in_the_way_until_it_is_removed) {
  fs::create_directory(at("deep/.step-1.fsdp-removed"));
  write_file(at("deep/.step-1.fsdp-removed/a"), "a");
  write_file(at("deep/.fsdp-removed"), "has no name in front");
  const RunFolder run(folder_.path());
  const RemovableState state = run.state("deep/step-1");
  EXPECT_EQ(code_of_removal(run, state), ErrorCode::kExists);
  EXPECT_TRUE(fs::exists(at("deep/step-1/inner/b")));
  const auto leftovers = run.leftovers_beside("deep/step-1");
  EXPECT_EQ(leftovers, std::vector<fs::path>{"deep/.step-1.fsdp-removed"});
  run.remove_leftover(leftovers.at(0));
  EXPECT_FALSE(fs::exists(at("deep/.step-1.fsdp-removed")));
  EXPECT_TRUE(fs::exists(at("deep/.fsdp-removed")));
  run.remove("deep/step-1", state);
  EXPECT_FALSE(fs::exists(at("deep/step-1")));
}

TEST_F(RemovalTest, one_at_a_time) {
  const RunFolder run(folder_.path());
  try {
    const RunFolder other(folder_.path());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBusy);
    EXPECT_THAT(error.what(), HasSubstr("another process removes checkpoints here"));
  }
}

}  // namespace
}  // namespace fsdp::formats
