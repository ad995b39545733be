// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/json.h"
#include "tests/tools/run_cli.h"
#include "tools/verbs/checking/pruning.h"

namespace fsdp::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::UnorderedElementsAre;

constexpr const char* kSmall = "2.11.0/minimal/ckpt";

class PruneTest : public CliTest {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(run_);
    for (const int step : {2, 10, 20, 30}) make(step);
  }
  void make(int step) const { copy_of(kSmall, "run/step-" + std::to_string(step)); }
  std::string step(int number) const { return run_ + "/step-" + std::to_string(number); }
  // Flips a bit of an element, which only a checksum shows.
  void flip(int number) const {
    std::string bytes = file_bytes(step(number) + "/__0_0.distcp");
    bytes[bytes.find(std::string("\0\0\x40\x40", 4)) + 1] ^= 1;
    write_file(step(number) + "/__0_0.distcp", bytes);
  }
  std::vector<std::string> left() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(run_))
      found.push_back(entry.path().filename());
    return found;
  }
  const std::string run_ = path("run");
};

using LatestTest = PruneTest;

TEST_F(LatestTest, the_path_alone_is_printed) {
  const CliResult result = run_cli({"latest", run_});
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.out, step(30) + "\n");
  EXPECT_EQ(result.err, "");
}

TEST_F(LatestTest, newer_ones_are_passed_over_with_the_reason) {
  flip(30);
  std::filesystem::create_directory(step(40));
  write_file(step(40) + "/__0_0.distcp", "half");
  const CliResult result = run_cli({"latest", run_});
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.out, step(20) + "\n");
  EXPECT_THAT(result.err, HasSubstr("note: passed over: " + step(40) + ": has no .metadata"));
  EXPECT_THAT(result.err, HasSubstr("note: passed over: " + step(30) + ": __0_0.distcp: "));
  EXPECT_THAT(result.err, HasSubstr("[ZIP_CRC]"));
  EXPECT_EQ(run_cli({"latest", run_, "-q"}).err, "");
  // Metadata and sizes show nothing of the flipped bit.
  EXPECT_EQ(run_cli({"latest", run_, "--fast"}).out, step(30) + "\n");
}

TEST_F(LatestTest, json_says_the_same) {
  flip(30);
  const CliResult result = run_cli({"latest", run_, "--json"});
  const formats::Json json = formats::parse_json(result.out);
  EXPECT_EQ(*json.find("schema")->as_string(), "fsdp-ckpt/latest/1");
  EXPECT_EQ(*json.find("newest_sound")->as_string(), step(20));
  EXPECT_EQ(*json.find("step")->as_int(), 20);
  ASSERT_EQ(json.find("passed_over")->as_array()->size(), 1U);
  EXPECT_EQ(*json.find("passed_over")->as_array()->at(0).find("code")->as_string(), "ZIP_CRC");
}

TEST_F(LatestTest, none_is_the_answer_no) {
  for (const int number : {2, 10, 20, 30}) std::filesystem::remove(step(number) + "/.metadata");
  const CliResult result = run_cli({"latest", run_});
  EXPECT_EQ(result.status, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("no checkpoint is sound"));
  std::filesystem::create_directory(path("empty"));
  EXPECT_EQ(run_cli({"latest", path("empty")}).status, 1);
}

TEST_F(LatestTest, what_is_no_run_is_an_error) {
  EXPECT_EQ(run_cli({"latest", path("nowhere")}).status, 2);
  const CliResult one = run_cli({"latest", step(30)});
  EXPECT_EQ(one.status, 2);
  EXPECT_THAT(one.err, HasSubstr("error[USAGE]: " + step(30) + ": is one checkpoint"));
}

TEST_F(LatestTest, a_seal_can_be_required) {
  ASSERT_EQ(run_cli({"seal", step(10)}).status, 0);
  EXPECT_EQ(run_cli({"latest", run_, "--require-seal"}).out, step(10) + "\n");
}

TEST_F(PruneTest, old_ones_go_and_the_newest_sound_one_stays) {
  const CliResult result = run_cli({"prune", run_, "--keep", "2"});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.out, HasSubstr("removed " + step(2) + ", 3.7 KiB\nremoved " + step(10)));
  EXPECT_THAT(result.out, HasSubstr("2 of 4 checkpoints removed"));
  EXPECT_THAT(left(), UnorderedElementsAre("step-20", "step-30"));
}

TEST_F(PruneTest, a_dry_run_removes_nothing) {
  const CliResult result = run_cli({"prune", run_, "--keep", "1", "--dry-run"});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.out, HasSubstr("would remove " + step(20)));
  EXPECT_EQ(left().size(), 4U);
}

TEST_F(PruneTest, only_sound_ones_count_and_newer_ones_stay_whatever_they_are) {
  flip(30);
  flip(10);
  EXPECT_EQ(run_cli({"prune", run_, "--keep", "1"}).status, 0);
  EXPECT_THAT(left(), UnorderedElementsAre("step-20", "step-30"));
}

TEST_F(PruneTest, with_fewer_sound_ones_nothing_goes) {
  flip(30);
  flip(10);
  const CliResult result = run_cli({"prune", run_, "--keep", "3", "--json"});
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(left().size(), 4U);
  EXPECT_THAT(*formats::parse_json(result.out).find("removed")->as_array(), IsEmpty());
  for (const int number : {2, 20}) flip(number);
  EXPECT_EQ(run_cli({"prune", run_, "--keep", "1"}).status, 1);
  EXPECT_EQ(left().size(), 4U);
}

// Nor what is older than all of them and not sound.
TEST_F(PruneTest, with_one_sound_one_too_few_nothing_goes) {
  flip(2);
  EXPECT_EQ(run_cli({"prune", run_, "--keep", "4"}).status, 0);
  EXPECT_EQ(left().size(), 4U);
  EXPECT_EQ(run_cli({"prune", run_, "--keep", "3"}).status, 0);
  EXPECT_THAT(left(), UnorderedElementsAre("step-10", "step-20", "step-30"));
}

TEST_F(PruneTest, other_series_links_and_foreign_files_stay) {
  copy_of("2.11.0/zip_pt/full.pt", "run/init-1.pt");
  std::filesystem::create_directory(run_ + "/deep");
  copy_of(kSmall, "run/deep/step-1");
  std::filesystem::create_directory_symlink("step-2", run_ + "/best");
  write_file(step(10) + "/notes.txt", "mine");
  std::filesystem::create_directory(step(20) + "/step-99");
  write_file(step(20) + "/step-99/model.safetensors", "x");
  const CliResult result = run_cli({"prune", run_, "--keep", "1"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.out, HasSubstr("kept " + step(2) + ": a link leads to it\n"));
  EXPECT_THAT(result.out, HasSubstr("kept " + step(10) + ": holds 'notes.txt'"));
  EXPECT_THAT(result.out, HasSubstr("kept " + step(20) + ": holds another step, 'step-99'"));
  EXPECT_EQ(left().size(), 7U);
  EXPECT_TRUE(std::filesystem::exists(run_ + "/deep/step-1"));
  EXPECT_EQ(run_cli({"prune", run_, "--keep", "1", "--whole-folders"}).status, 1);
  EXPECT_FALSE(std::filesystem::exists(step(10)));
  EXPECT_TRUE(std::filesystem::exists(step(20)));
}

TEST_F(PruneTest, names_that_leave_doubt_do_not_count) {
  std::filesystem::remove_all(run_);
  std::filesystem::create_directory(run_);
  for (const char* name : {"v2-loss0.5.pt", "v2-loss0.1.pt"})
    copy_of("2.11.0/zip_pt/full.pt", std::string("run/") + name);
  const CliResult result = run_cli({"prune", run_, "--keep", "1"});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr("does not tell its step for certain; nothing is removed"));
  EXPECT_EQ(left().size(), 2U);
}

TEST_F(PruneTest, single_files_go_with_their_seals) {
  std::filesystem::remove_all(run_);
  std::filesystem::create_directory(run_);
  for (const char* name : {"epoch=1-step=10.ckpt", "epoch=2-step=20.ckpt"}) {
    copy_of("2.11.0/zip_pt/full.pt", std::string("run/") + name);
    ASSERT_EQ(run_cli({"seal", run_ + "/" + name}).status, 0);
  }
  EXPECT_EQ(run_cli({"prune", run_, "--keep", "1"}).status, 0);
  EXPECT_THAT(left(),
              UnorderedElementsAre("epoch=2-step=20.ckpt", "epoch=2-step=20.ckpt.fsdp_seal.json"));
}

TEST_F(PruneTest, the_rest_of_a_killed_run_is_no_checkpoint_and_goes) {
  std::filesystem::rename(step(2), run_ + "/.step-2.fsdp-removed");
  std::filesystem::remove(run_ + "/.step-2.fsdp-removed/__0_0.distcp");
  EXPECT_THAT(run_cli({"inspect", run_}).out, Not(HasSubstr("step-2.")));
  EXPECT_EQ(run_cli({"prune", run_, "--keep", "3"}).status, 0);
  EXPECT_THAT(left(), UnorderedElementsAre("step-10", "step-20", "step-30"));
}

TEST_F(PruneTest, what_is_removed_of_a_killed_run_is_said) {
  std::filesystem::rename(step(2), run_ + "/.step-2.fsdp-removed");
  const std::string rest = run_ + "/.step-2.fsdp-removed";
  EXPECT_THAT(run_cli({"prune", run_, "--keep", "3", "-n"}).err, HasSubstr("would remove " + rest));
  EXPECT_TRUE(std::filesystem::exists(rest));
  EXPECT_THAT(run_cli({"prune", run_, "--keep", "3"}).err, HasSubstr("removed " + rest));
}

TEST_F(PruneTest, names_with_control_characters_are_shown_escaped) {
  copy_of(kSmall, "run/\x1b[31mstep-1");
  copy_of(kSmall, "run/\x1b[31mstep-90");
  const CliResult result = run_cli({"prune", run_, "--keep", "1"});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.out, Not(HasSubstr("\x1b")));
  EXPECT_FALSE(std::filesystem::exists(run_ + "/\x1b[31mstep-1"));
  // Another series.
  EXPECT_EQ(left().size(), 5U);
}

TEST_F(PruneTest, words_are_checked) {
  EXPECT_EQ(run_cli({"prune", run_}).status, 2);
  EXPECT_EQ(run_cli({"prune", run_, "--keep", "0"}).status, 2);
  EXPECT_EQ(run_cli({"prune", run_, "--keep", "1", "-k", "w"}).status, 2);
  EXPECT_EQ(run_cli({"prune", step(2), "--keep", "1"}).status, 2);
  EXPECT_EQ(left().size(), 4U);
}

// Other numbers in a name are of another model, or another run.
TEST_F(PruneTest, only_names_that_differ_in_the_step_are_compared) {
  for (const char* name : {"exp1/step-100", "exp2/step-50", "exp1/step-20"}) {
    std::filesystem::create_directories(
        std::filesystem::path(path("runs/" + std::string(name))).parent_path());
    copy_of(kSmall, "runs/" + std::string(name));
  }
  const CliResult result = run_cli({"prune", path("runs"), "--keep", "1"});
  EXPECT_EQ(result.status, 0);
  EXPECT_FALSE(std::filesystem::exists(path("runs/exp1/step-20")));
  EXPECT_TRUE(std::filesystem::exists(path("runs/exp2/step-50")));
  EXPECT_THAT(result.out, HasSubstr("kept 1 checkpoint of another series, exp2/step-#\n"));
  for (const char* name : {"model_7B_step100.pt", "model_13B_step50.pt"}) {
    std::filesystem::create_directory(path("files"));
    copy_of("2.11.0/zip_pt/full.pt", "files/" + std::string(name));
  }
  EXPECT_EQ(run_cli({"prune", path("files"), "--keep", "1"}).status, 0);
  EXPECT_TRUE(std::filesystem::exists(path("files/model_13B_step50.pt")));
}

// Two folders inside each step; nothing in their names but "optimizer" is known to a layout.
class StepPartsTest : public PruneTest {
 protected:
  void SetUp() override {
    for (const int number : {10, 20, 30}) make_parts(number);
  }
  void make_parts(int number) const {
    for (const char* part : {"weights", "optimizer"}) {
      std::filesystem::create_directories(step(number) + "/policy");
      copy_of(kSmall, "run/step-" + std::to_string(number) + "/policy/" + part);
    }
  }
  std::string weights(int number) const { return step(number) + "/policy/weights"; }
};

TEST_F(StepPartsTest, a_step_is_sound_if_every_part_is) {
  std::filesystem::remove(weights(30) + "/__0_0.distcp");
  const CliResult verified = run_cli({"verify", step(30)});
  EXPECT_EQ(verified.status, 1);
  EXPECT_THAT(verified.out, HasSubstr("part policy/optimizer: sound\n"));
  EXPECT_THAT(verified.out, HasSubstr("part policy/weights: damaged\n"));
  EXPECT_THAT(verified.out, HasSubstr("damage[SHARD_MISSING]: policy/weights/__0_0.distcp"));
  const formats::Json json = formats::parse_json(run_cli({"verify", step(30), "--json"}).out);
  ASSERT_EQ(json.find("parts")->as_array()->size(), 2U);
  EXPECT_EQ(*json.find("parts")->as_array()->at(1).find("verdict")->as_string(), "damaged");
  EXPECT_EQ(run_cli({"latest", run_}).out, step(20) + "\n");
  EXPECT_EQ(run_cli({"prune", run_, "--keep", "1"}).status, 0);
  EXPECT_THAT(left(), UnorderedElementsAre("step-20", "step-30"));
}

TEST_F(StepPartsTest, a_step_that_lost_a_part_is_not_the_one_to_keep) {
  std::filesystem::remove_all(step(30) + "/policy/optimizer");
  EXPECT_EQ(run_cli({"latest", run_}).out, step(20) + "\n");
  EXPECT_EQ(run_cli({"verify", step(30)}).status, 0) << "nothing in it tells of another part";
  EXPECT_THAT(
      run_cli({"verify", run_}).out,
      HasSubstr("warning[SHARD_MISSING]: lacks policy/optimizer, which " + step(20) + " has"));
  EXPECT_EQ(run_cli({"prune", run_, "--keep", "1"}).status, 0);
  EXPECT_THAT(left(), UnorderedElementsAre("step-20", "step-30"));
}

TEST_F(StepPartsTest, an_optimizer_alone_is_no_model) {
  for (const int number : {10, 20, 30}) std::filesystem::remove_all(weights(number));
  const CliResult verified = run_cli({"verify", step(30)});
  EXPECT_EQ(verified.status, 1);
  EXPECT_THAT(verified.out,
              HasSubstr("damage[SHARD_MISSING]: holds policy/optimizer, but no model"));
  EXPECT_EQ(run_cli({"latest", run_}).status, 1);
}

TEST_F(StepPartsTest, every_part_is_in_the_output) {
  ASSERT_EQ(run_cli({"consolidate", step(30), path("one.pt")}).status, 0);
  const CliResult shown = run_cli({"inspect", path("one.pt"), "--json"});
  EXPECT_THAT(shown.out, HasSubstr("\"weights."));
  EXPECT_THAT(shown.out, HasSubstr("\"optimizer."));
  const CliResult one = run_cli({"latest", step(30)});
  EXPECT_EQ(one.status, 2);
  EXPECT_THAT(one.err, HasSubstr("is one checkpoint, not the folder of a run"));
}

TEST_F(PruneTest, parts_that_lie_in_no_folder_of_their_own_are_refused) {
  std::filesystem::remove_all(run_);
  std::filesystem::create_directory(run_);
  for (const char* name : {"model_step10.pt", "optim_step10.pt", "model_step20.pt"})
    copy_of("2.11.0/zip_pt/full.pt", std::string("run/") + name);
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"latest", run_}, {"prune", run_, "--keep", "1"}}) {
    const CliResult result = run_cli(words);
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.err, HasSubstr("look like parts of the same steps"));
  }
  EXPECT_EQ(left().size(), 3U);
}

TEST_F(PruneTest, a_number_that_nothing_can_hold_is_refused) {
  copy_of(kSmall, "run/step-99999999999999999999");
  const CliResult result = run_cli({"prune", run_, "--keep", "1"});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr("the number in its name has more than 64 bits"));
  EXPECT_EQ(left().size(), 5U);
}

TEST_F(PruneTest, links_protect_however_deep_they_lie) {
  std::filesystem::create_directories(run_ + "/a/b/c/d/e/f");
  std::filesystem::create_directory_symlink(step(2), run_ + "/a/b/c/d/e/f/best");
  EXPECT_EQ(run_cli({"prune", run_, "--keep", "1"}).status, 0);
  EXPECT_TRUE(std::filesystem::exists(step(2)));
  EXPECT_FALSE(std::filesystem::exists(step(10)));
}

TEST_F(PruneTest, a_folder_with_the_name_of_a_seal_is_foreign) {
  std::filesystem::create_directory(step(2) + "/mine.fsdp_seal.json");
  const CliResult result = run_cli({"prune", run_, "--keep", "1"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.out, HasSubstr("kept " + step(2) + ": holds 'mine.fsdp_seal.json'"));
}

TEST_F(LatestTest, names_that_tell_no_step_have_no_newest) {
  std::filesystem::remove_all(run_);
  std::filesystem::create_directory(run_);
  copy_of("2.11.0/zip_pt/full.pt", "run/bert.pt");
  EXPECT_EQ(run_cli({"latest", run_}).out, run_ + "/bert.pt\n");
  copy_of("2.11.0/zip_pt/full.pt", "run/llama.pt");
  const CliResult result = run_cli({"latest", run_});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr("does not tell its step for certain"));
}

TEST_F(PruneTest, checkpoints_in_a_store_stay) {
  const CliResult result = run_cli({"prune", "s3://bucket/run", "--keep", "1"});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr("error[UNSUPPORTED]: s3://bucket/run: is a URL; checkpoints in "
                                    "a store are not removed, only local ones"));
}

}  // namespace
}  // namespace fsdp::cli
