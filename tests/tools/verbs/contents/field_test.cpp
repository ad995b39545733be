// SPDX-License-Identifier: Apache-2.0
// Inputs laid out as in public reports (tests/data/field), each with what its producer's code
// reads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/json.h"
#include "tests/support/torch_zip_builder.h"
#include "tests/tools/run_cli.h"

namespace fsdp::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string field(const std::string& name) {
  return test::data_path("field/" + name).native();
}

class Field : public CliTest {
 protected:
  std::string copy_of_field(const std::string& name) const {
    std::filesystem::copy(field(name), path("copy"), std::filesystem::copy_options::recursive);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path("copy")))
      std::filesystem::permissions(entry, std::filesystem::perms::owner_all);
    return path("copy");
  }
  // The model of a step, which lies below `key`, is what the producer's code reads.
  void same_as_truth(const std::string& step, const std::string& key,
                     const std::string& truth) const {
    const CliResult made =
        run_cli({"consolidate", step, path("model.pt"), "-k", key + ".**", "--strip-prefix", key});
    ASSERT_EQ(made.status, 0) << made.err;
    const CliResult same = run_cli({"diff", path("model.pt"), truth});
    EXPECT_EQ(same.status, 0) << same.out;
  }
};

TEST_F(Field, a_healthy_trainers_folder_is_sound_and_a_trap_in_it_is_not) {
  for (const char* name : {"frameworks/trainer_safetensors/ckpt", "frameworks/trainer_bin/ckpt"}) {
    const CliResult strict = run_cli({"verify", golden_path(name), "--strict"});
    EXPECT_EQ(strict.status, 0) << strict.out;
  }
  test::TorchZip trap;
  trap.root = test::call(test::global("os", "system"), {test::text("true")});
  for (const char* name : {"scheduler.pt", "rng_state_1.pth", "optimizer.pt"}) {
    const std::string folder = copy_of("frameworks/trainer_safetensors/ckpt", "folder");
    write_file(folder + "/" + name, trap.bytes());
    const CliResult alone = run_cli({"verify", folder + "/" + name});
    const CliResult whole = run_cli({"verify", folder});
    EXPECT_THAT(alone.out, HasSubstr(": unsafe, 1 finding")) << name;
    EXPECT_EQ(whole.status, 1) << name;
    EXPECT_THAT(whole.out, AllOf(HasSubstr("unsafe[GLOBAL]: "), HasSubstr(": unsafe, 1 finding")))
        << name;
    std::filesystem::remove_all(folder);
  }
}

// policy/weights and policy/optimizer inside each step; only step_30 has an optimizer.
TEST_F(Field, a_step_of_nemo_rl_is_one_unit) {
  const std::string run = copy_of_field("nemo-rl-steps/run/results");
  EXPECT_EQ(run_cli({"latest", run}).out, run + "/step_30\n");
  EXPECT_THAT(run_cli({"inspect", run}).out, HasSubstr("3 checkpoints\n"));
  std::filesystem::remove(run + "/step_30/policy/weights/__0_0.distcp");
  const CliResult damaged = run_cli({"verify", run + "/step_30"});
  EXPECT_EQ(damaged.status, 1);
  EXPECT_THAT(damaged.out, AllOf(HasSubstr("part policy/optimizer: sound\n"),
                                 HasSubstr("part policy/weights: damaged\n"),
                                 HasSubstr("part train_dataloader.pt: sound\n")));
  EXPECT_EQ(run_cli({"latest", run}).out, run + "/step_20\n");
  run_cli({"prune", run, "--keep", "1", "--whole-folders"});
  EXPECT_TRUE(std::filesystem::exists(run + "/step_20/policy/weights/.metadata"));
  EXPECT_FALSE(std::filesystem::exists(run + "/step_10"));
  same_as_truth(run + "/step_20", "weights.model", field("nemo-rl-steps/truth/step_20.pt"));
}

TEST_F(Field, a_step_of_olmo_core_is_read_and_named) {
  const std::string run = field("olmo-core-step/run");
  const CliResult verified = run_cli({"verify", run + "/step100"});
  EXPECT_EQ(verified.status, 0) << verified.out;
  EXPECT_THAT(verified.out, HasSubstr("part model_and_optim: sound\n"));
  EXPECT_EQ(run_cli({"latest", run}).out, run + "/step100\n");
  same_as_truth(run + "/step100", "model_and_optim.model", field("olmo-core-step/truth/model.pt"));
}

TEST_F(Field, a_folder_is_no_better_than_its_file) {
  const std::string folder = field("accelerate-peft-full-rank0-only/checkpoint-2");
  const CliResult file = run_cli({"verify", folder + "/pytorch_model_fsdp.bin"});
  const CliResult whole = run_cli({"verify", folder});
  EXPECT_EQ(file.status, 1);
  EXPECT_THAT(file.out, HasSubstr("damaged, 12 findings"));
  EXPECT_EQ(whole.status, 1);
  EXPECT_THAT(whole.out, HasSubstr("damaged, 12 findings"));
  EXPECT_EQ(run_cli({"consolidate", folder, path("out.pt")}).status, 2);
}

TEST_F(Field, replicas_that_differ_are_damage_and_not_copied) {
  for (const char* name : {"ranks", "hsdp"}) {
    const std::string folder = field(std::string("ep-submesh-files-of-ranks/") + name);
    const CliResult verified = run_cli({"verify", folder});
    EXPECT_EQ(verified.status, 1) << name;
    EXPECT_THAT(verified.out, AllOf(HasSubstr("damage[MISMATCH]: "), HasSubstr("_rank_0.pt and "),
                                    HasSubstr(" with other bytes")));
    const CliResult made = run_cli({"consolidate", folder, path("out.pt")});
    EXPECT_EQ(made.status, 2) << name;
    EXPECT_THAT(made.err, HasSubstr("error[MISMATCH]"));
    EXPECT_FALSE(std::filesystem::exists(path("out.pt")));
  }
}

TEST_F(Field, replicas_in_folders_with_metadata_of_each_rank_are_compared) {
  const std::string equal = field("hsdp-metadata-of-ranks/equal");
  EXPECT_THAT(run_cli({"verify", equal}).out, HasSubstr("equal: sound, "));
  EXPECT_EQ(run_cli({"consolidate", equal, path("equal.pt")}).status, 0);
  const std::string torn = field("hsdp-metadata-of-ranks/torn");
  const CliResult verified = run_cli({"verify", torn});
  EXPECT_EQ(verified.status, 1);
  EXPECT_THAT(verified.out, AllOf(HasSubstr("damage[MISMATCH]: "), HasSubstr("model.w"),
                                  HasSubstr("__0_0.distcp and __2_0.distcp hold [0:2, 0:6]"),
                                  HasSubstr("__1_0.distcp and __3_0.distcp hold [2:4, 0:6]"),
                                  HasSubstr("damaged, 2 findings")));
  // Of a tensor that each rank wrote whole, it is not known that all have the same.
  EXPECT_THAT(verified.out, HasSubstr("warning[MISMATCH]: "));
  const CliResult made = run_cli({"consolidate", torn, path("torn.pt")});
  EXPECT_EQ(made.status, 2);
  EXPECT_THAT(made.err, HasSubstr("error[MISMATCH]"));
  EXPECT_FALSE(std::filesystem::exists(path("torn.pt")));
}

}  // namespace
}  // namespace fsdp::cli
