// SPDX-License-Identifier: Apache-2.0
// Tests which files go along to another number of ranks, and under which names.  tests/interop
// checks that the programs that saved them go on with them.
#include "formats/families/trainers/carried_files.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class CarriedFilesTest : public testing::Test {
 protected:
  void add(const std::string& name, std::string_view content) const {
    fs::create_directories((folder_ / name).parent_path());
    test::write_file(folder_ / name, content);
  }
  CarriedFiles carried(std::int64_t from, std::int64_t to) const {
    return carried_files(Listing(folder_.path()),
                         {.from_ranks = from,
                          .to_ranks = to,
                          .wanted = [](const std::string& name) { return name != "model"; }});
  }
  static std::vector<std::string> names(const CarriedFiles& carried) {
    std::vector<std::string> out;
    for (const CarriedFile& file : carried.files) out.push_back(file.source + ">" + file.name);
    return out;
  }

  test::TempDir folder_;
};

TEST_F(CarriedFilesTest, files_for_all_ranks_stay_what_they_are_in_their_folders) {
  for (const char* name :
       {"trainer_state.json", "huggingface/merges.txt", "huggingface/a/tokenizer.model",
        "model/x.json", ".hidden.json", "fsdp_seal.json"})
    add(name, "x");
  const CarriedFiles found = carried(2, 3);
  EXPECT_THAT(names(found),
              ElementsAre("huggingface/a/tokenizer.model>huggingface/a/tokenizer.model",
                          "huggingface/merges.txt>huggingface/merges.txt",
                          "trainer_state.json>trainer_state.json"));
  EXPECT_THAT(found.notes, IsEmpty());
}

TEST_F(CarriedFilesTest, what_is_not_a_checkpoints_file_is_left_out_and_named) {
  add("modeling.py", "x");
  add("events.out", "x");
  add("a.json", "x");
  fs::create_symlink("/etc/hostname", folder_ / "outside.json");
  const CarriedFiles found = carried(2, 3);
  EXPECT_THAT(names(found), ElementsAre("a.json>a.json"));
  ASSERT_EQ(found.notes.size(), 3U);
  EXPECT_EQ(found.notes[0].name, "events.out");
  EXPECT_THAT(found.notes[1].note, HasSubstr("is code"));
  EXPECT_EQ(found.notes[2].name, "outside.json");
}

TEST_F(CarriedFilesTest, random_states_go_to_the_ranks_that_had_them) {
  for (const char* name : {"rng_state_0.pth", "rng_state_1.pth", "rng_state_2.pth"}) add(name, "x");
  EXPECT_THAT(names(carried(3, 2)),
              ElementsAre("rng_state_0.pth>rng_state_0.pth", "rng_state_1.pth>rng_state_1.pth"));
  EXPECT_THAT(names(carried(3, 1)), ElementsAre("rng_state_0.pth>rng_state.pth"));
  const CarriedFiles more = carried(3, 5);
  EXPECT_EQ(more.files.size(), 3U);
  ASSERT_EQ(more.notes.size(), 2U);
  EXPECT_EQ(more.notes[1].name, "rng_state_4.pth");
  EXPECT_THAT(more.notes[1].note, HasSubstr("did not exist"));
}

TEST_F(CarriedFilesTest, a_file_that_is_the_same_on_all_ranks_is_that_of_new_ones_too) {
  add("data_0.pt", "x");
  add("data_1.pt", "x");
  EXPECT_THAT(names(carried(2, 3)),
              ElementsAre("data_0.pt>data_0.pt", "data_1.pt>data_1.pt", "data_0.pt>data_2.pt"));
  add("data_1.pt", "y");
  const CarriedFiles found = carried(2, 3);
  EXPECT_EQ(found.files.size(), 2U);
  ASSERT_EQ(found.notes.size(), 1U);
  EXPECT_THAT(found.notes[0].note, HasSubstr("the others' files differ"));
}

TEST_F(CarriedFilesTest, the_number_of_ranks_in_a_configuration_is_the_new_one) {
  add("fsdp_config.json", R"({"FSDP_version": 2, "world_size": 2})");
  const CarriedFiles found = carried(2, 3);
  ASSERT_EQ(found.files.size(), 1U);
  EXPECT_EQ(found.files[0].text, "{\n    \"FSDP_version\": 2,\n    \"world_size\": 3\n}");
  test::expect_error(ErrorCode::kMismatch, "world_size: is 2", [&] { (void)carried(4, 3); });
  add("fsdp_config.json", "{");
  test::expect_error(ErrorCode::kJson, "fsdp_config.json", [&] { (void)carried(2, 3); });
}

TEST_F(CarriedFilesTest, a_rank_without_a_file_that_the_loader_needs_is_an_error) {
  add("extra_state_world_size_2_rank_1.pt", "x");
  test::expect_error(ErrorCode::kShardMissing, "has 1 of the 2 files",
                     [&] { (void)carried(2, 3); });
}

}  // namespace
}  // namespace fsdp::formats
