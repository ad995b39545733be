// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/store/hidden_files.h"

#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/files/file.h"
#include "formats/bytes/store/place.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

using testing::ElementsAre;

TEST(HiddenFiles, are_missing_for_all_threads_as_long_as_the_object_exists) {
  const test::TempDir folder;
  std::filesystem::create_directory(folder / "below");
  for (const char* name : {"a", "b", "below/c"}) test::write_file(folder / name, "x");
  const std::filesystem::path path = folder.path();
  {
    const HiddenFiles hidden({path / "a", path / "below/c"});
    const auto opened = folder_at(path);
    EXPECT_THAT(opened->list(), ElementsAre("b", "below"));
    EXPECT_THAT(opened->list_files(), ElementsAre("b"));
    EXPECT_EQ(opened->open_member_if_present("a"), nullptr);
    EXPECT_EQ(opened->open_member_if_present("below/c"), nullptr);
    EXPECT_NE(opened->open_member_if_present("b"), nullptr);
    EXPECT_EQ(kind_of_place(path / "a"), PlaceKind::kNothing);
    EXPECT_FALSE(exists_at(path / "a"));
    test::expect_error(ErrorCode::kNotFound, "no such file", [&] { file_at(path / "a"); });
    std::thread([&] { EXPECT_THAT(opened->list(), ElementsAre("b", "below")); }).join();
  }
  EXPECT_THAT(folder_at(path)->list_files(), ElementsAre("a", "b", "below/c"));
  EXPECT_TRUE(exists_at(path / "a"));
}

}  // namespace
}  // namespace fsdp::formats
