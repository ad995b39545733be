// SPDX-License-Identifier: Apache-2.0
// Tests which inputs shard and reshard refuse, and that they leave nothing behind. tests/interop
// checks that their chunks are FSDP's and that PyTorch loads them.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"
#include "tests/support/dcp_folder.h"
#include "tests/support/pickle_stream.h"
#include "tests/tools/run_cli.h"

namespace fsdp::cli {
namespace {

namespace fs = std::filesystem;

using formats::cat;
using testing::HasSubstr;

TEST_F(CliTest, a_world_size_out_of_range_is_refused_with_the_range) {
  for (const std::string verb : {"shard", "reshard"}) {
    for (const std::string size :
         {"0", "-1", "1000000000", "18446744073709551616", "4x", "", "65537"}) {
      const CliResult done =
          run_cli({verb, golden_path("2.11.0/minimal/ckpt"), path("out"), "--world-size=" + size});
      EXPECT_EQ(done.status, 2) << size;
      EXPECT_THAT(done.err, HasSubstr("--world-size")) << size;
      if (!size.empty()) {
        EXPECT_THAT(done.err, HasSubstr("from 1 to 65536")) << size;
      }
    }
    EXPECT_EQ(run_cli({verb, golden_path("2.11.0/minimal/ckpt"), path("out")}).status, 2);
  }
  EXPECT_TRUE(names().empty());
}

TEST_F(CliTest, a_dry_run_of_reshard_names_the_files_and_bytes_that_are_then_written) {
  const std::string source = golden_path("2.15.0/fsdp2/ckpt");
  const CliResult dry =
      run_cli({"reshard", source, path("out"), "--world-size", "3", "--dry-run", "--json"});
  ASSERT_EQ(dry.status, 0) << dry.err;
  ASSERT_TRUE(names().empty());
  ASSERT_EQ(run_cli({"reshard", source, path("out"), "--world-size", "3"}).status, 0);
  const formats::Json json = formats::parse_json(dry.out);
  std::size_t files = 0;
  for (const formats::Json& file : *json.find("files")->as_array()) {
    ++files;
    EXPECT_EQ(static_cast<std::int64_t>(
                  fs::file_size(fs::path(path("out")) / *file.find("name")->as_string())),
              *file.find("bytes")->as_int());
  }
  EXPECT_EQ(files, 4U);
}

TEST_F(CliTest, resharding_there_and_back_gives_the_same_bytes) {
  const std::string source = golden_path("2.15.0/fsdp1/ckpt");
  ASSERT_EQ(run_cli({"reshard", source, path("a"), "--world-size", "2"}).status, 0);
  ASSERT_EQ(run_cli({"reshard", path("a"), path("b"), "--world-size", "7"}).status, 0);
  ASSERT_EQ(run_cli({"reshard", path("b"), path("c"), "--world-size", "2", "--threads", "1",
                     "--max-memory", "16MiB"})
                .status,
            0);
  for (const std::string name : {"__0_0.distcp", "__1_0.distcp", ".metadata"})
    EXPECT_EQ(file_bytes(path("a/" + name)), file_bytes(path("c/" + name))) << name;
}

TEST_F(CliTest, reshard_refuses_destinations_inside_around_and_at_the_source) {
  const std::string source = copy_of("2.11.0/shards/ckpt", "ckpt");
  for (const std::string& out : {source, source + "/inside", source + "/../ckpt/x"}) {
    const CliResult done = run_cli({"reshard", source, out, "--world-size", "2", "--force"});
    EXPECT_EQ(done.status, 2) << out;
    EXPECT_THAT(done.err, HasSubstr("error[SAME_PATH]")) << out;
  }
  const CliResult around =
      run_cli({"reshard", source, folder().native(), "--world-size", "2", "--force"});
  EXPECT_THAT(around.err, HasSubstr("error[SAME_PATH]"));
  EXPECT_EQ(run_cli({"verify", source}).status, 0);
}

TEST_F(CliTest, reshard_refuses_a_source_that_lacks_a_file_before_it_writes) {
  const std::string source = copy_of("2.11.0/shards/ckpt", "ckpt");
  for (const auto& entry : fs::directory_iterator(source)) {
    if (entry.path().extension() == ".distcp" && entry.file_size() > 0) {
      fs::remove(entry.path());
      break;
    }
  }
  const CliResult done = run_cli({"reshard", source, path("out"), "--world-size", "2"});
  EXPECT_EQ(done.status, 2);
  EXPECT_THAT(done.err, HasSubstr("error[SHARD_MISSING]"));
  EXPECT_FALSE(fs::exists(path("out")));
}

TEST_F(CliTest, reshard_selects_keys_and_refuses_what_matches_nothing) {
  const std::string source = golden_path("2.15.0/fsdp2/ckpt");
  ASSERT_EQ(
      run_cli({"reshard", source, path("out"), "--world-size", "2", "-k", "app.model.**"}).status,
      0);
  const CliResult listed = run_cli({"inspect", path("out"), "--json"});
  EXPECT_THAT(listed.out, HasSubstr("app.model."));
  EXPECT_THAT(listed.out, testing::Not(HasSubstr("optim")));
  const CliResult none =
      run_cli({"reshard", source, path("none"), "--world-size", "2", "-k", "nothing"});
  EXPECT_THAT(none.err, HasSubstr("error[NOT_FOUND]"));
  EXPECT_FALSE(fs::exists(path("none")));
}

TEST_F(CliTest, reshard_refuses_values_that_would_run_code_unless_they_are_allowed) {
  test::DcpFolder made;
  made.metadata.tensors.push_back({"w", {4}, {made.chunk({0}, {4})}});
  made.add_value("config", test::global("my.module", "Config") + ")R");
  made.write();
  const std::string source = made.folder.path().native();
  const CliResult refused = run_cli({"reshard", source, path("out"), "--world-size", "2"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("error[GLOBAL]"));
  EXPECT_THAT(refused.err, HasSubstr("'my.module.Config'"));
  EXPECT_TRUE(names().empty());
  const CliResult allowed = run_cli(
      {"reshard", source, path("out"), "--world-size", "2", "--allow-global", "my.module.Config"});
  EXPECT_EQ(allowed.status, 0) << allowed.err;
}

// Accelerate's folder of two ranks with what the Trainer keeps beside it.
class TrainerFolder : public CliTest {
 protected:
  std::string made() const {
    const std::string source =
        copy_of("frameworks/accelerate_fsdp1_sharded_per_rank_w2/ckpt", "checkpoint-2");
    for (const char* name : {"rng_state_0.pth", "rng_state_1.pth"})
      fs::copy_file(source + "/scheduler.bin", source + "/" + name);
    write_file(fs::path(source) / "trainer_state.json", "{\"global_step\": 2}\n");
    write_file(fs::path(source) / "merges.txt", "a b\n");
    write_file(fs::path(source) / "code.py", "pass\n");
    write_file(fs::path(source) / "training_args.bin",
               test::proto(2, test::global("my.module", "Args") + ")R"));
    return source;
  }
};

TEST_F(TrainerFolder, keeps_its_layout_and_what_lies_beside_the_model) {
  const std::string source = made();
  const CliResult done = run_cli({"reshard", source, path("out"), "--world-size", "3"});
  ASSERT_EQ(done.status, 0) << done.err;
  for (const char* name :
       {"scheduler.bin", "rng_state_0.pth", "rng_state_1.pth", "trainer_state.json", "merges.txt"})
    EXPECT_EQ(file_bytes(path("out") + "/" + name), file_bytes(source + "/" + name)) << name;
  for (const char* name : {"pytorch_model_fsdp_0/__2_0.distcp", "optimizer_0/.metadata"})
    EXPECT_TRUE(fs::exists(path("out") + "/" + name)) << name;
  for (const char* name : {"rng_state_2.pth", "training_args.bin", "code.py", ".metadata"})
    EXPECT_FALSE(fs::exists(path("out") + "/" + name)) << name;
  EXPECT_THAT(done.out, HasSubstr("rng_state_2.pth: is not there: this rank did not exist"));
  EXPECT_THAT(done.out, HasSubstr("code.py: is left out: is code"));
  EXPECT_THAT(done.out, HasSubstr("training_args.bin: is left out: the name 'my.module.Args' in it "
                                  "is not known to be plain data; --allow-global my.module.Args"));
  EXPECT_EQ(run_cli({"verify", path("out")}).status, 0);
  EXPECT_EQ(run_cli({"diff", source, path("out")}).status, 0);
  const CliResult again = run_cli({"reshard", source, path("out"), "--world-size", "2", "--force",
                                   "--json", "--allow-global", "my.module.Args"});
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_TRUE(fs::exists(path("out") + "/training_args.bin"));
  EXPECT_THAT(again.out, HasSubstr("\"carried\""));
  EXPECT_THAT(again.out, HasSubstr("\"format\": \"accelerate\""));
}

TEST_F(TrainerFolder, of_one_rank_has_the_name_that_one_rank_looks_for) {
  const std::string source = made();
  ASSERT_EQ(run_cli({"reshard", source, path("one"), "--world-size", "1"}).status, 0);
  EXPECT_TRUE(fs::exists(path("one") + "/rng_state.pth"));
  EXPECT_FALSE(fs::exists(path("one") + "/rng_state_0.pth"));
  ASSERT_EQ(run_cli({"reshard", path("one"), path("two"), "--world-size", "2"}).status, 0);
  EXPECT_EQ(file_bytes(path("two") + "/rng_state_0.pth"), file_bytes(source + "/rng_state_0.pth"));
  EXPECT_FALSE(fs::exists(path("two") + "/rng_state.pth"));
}

TEST_F(TrainerFolder, leaves_out_what_a_selection_leaves_out) {
  const std::string source = made();
  ASSERT_EQ(run_cli({"reshard", source, path("out"), "--world-size", "2", "--exclude",
                     "optimizer.**", "--exclude", "scheduler.**"})
                .status,
            0);
  EXPECT_FALSE(fs::exists(path("out") + "/optimizer_0"));
  EXPECT_FALSE(fs::exists(path("out") + "/scheduler.bin"));
  EXPECT_TRUE(fs::exists(path("out") + "/rng_state_0.pth"));
}

TEST_F(TrainerFolder, becomes_a_folder_of_dcp_if_asked_to) {
  const std::string source = made();
  ASSERT_EQ(
      run_cli({"reshard", source, path("out"), "--world-size", "2", "--layout", "dcp"}).status, 0);
  EXPECT_TRUE(fs::exists(path("out") + "/.metadata"));
  EXPECT_FALSE(fs::exists(path("out") + "/trainer_state.json"));
  const CliResult globs =
      run_cli({"reshard", source, path("no"), "--world-size", "2", "--replicate", "model.**"});
  EXPECT_EQ(globs.status, 2);
  EXPECT_THAT(globs.err, HasSubstr("--layout dcp"));
}

TEST_F(TrainerFolder, goes_along_with_convert_too) {
  const std::string source = made();
  ASSERT_EQ(run_cli({"convert", source, path("out"), "--to", "accelerate", "-w", "2"}).status, 0);
  EXPECT_EQ(file_bytes(path("out") + "/rng_state_1.pth"), file_bytes(source + "/rng_state_1.pth"));
  EXPECT_TRUE(fs::exists(path("out") + "/trainer_state.json"));
}

// What the files hold is compared with DeepSpeed itself by tests/interop/check_deepspeed.py.
TEST_F(CliTest, deepspeeds_partitions_stay_partitions_of_other_ranks) {
  for (const char* name : {"deepspeed_zero2_w2", "deepspeed_zero3_w3"}) {
    SCOPED_TRACE(name);
    const bool third = std::string(name) == "deepspeed_zero3_w3";
    const std::string source = copy_of(cat("frameworks/", name, "/ckpt"), name);
    fs::create_directory(source + "/global_step1");
    write_file(fs::path(source) / "global_step1/mp_rank_00_model_states.pt", "older");
    write_file(fs::path(source) / "zero_to_fp32.py", "pass\n");
    write_file(fs::path(source) / "mine.py", "pass\n");
    const std::string out = path(cat(name, "_5"));
    const CliResult done = run_cli({"reshard", source, out, "--world-size", "5", "--json"});
    ASSERT_EQ(done.status, 0) << done.err;
    EXPECT_THAT(done.out, HasSubstr("\"format\": \"deepspeed\""));
    EXPECT_EQ(file_bytes(out + "/latest"), file_bytes(source + "/latest"));
    EXPECT_TRUE(fs::exists(out + "/zero_to_fp32.py"));
    EXPECT_FALSE(fs::exists(out + "/mine.py"));
    EXPECT_FALSE(fs::exists(out + "/global_step1"));
    const std::string tag = out + "/global_step2/";
    EXPECT_TRUE(fs::exists(tag + "bf16_zero_pp_rank_4_mp_rank_00_optim_states.pt"));
    EXPECT_EQ(fs::exists(tag + "zero_pp_rank_4_mp_rank_00_model_states.pt"), third);
    const CliResult read = run_cli({"verify", out, "--json"});
    EXPECT_EQ(read.status, 0) << read.out;
    EXPECT_THAT(run_cli({"inspect", out, "--json"}).out, HasSubstr("\"ranks\":5"));
    EXPECT_EQ(run_cli({"diff", source, out, "--exclude", "dp_world_size"}).status, 0);
    // Back again, by the tag folder alone.
    const std::string back = path(cat(name, "_back"));
    ASSERT_EQ(run_cli({"convert", tag, back, "--to", "deepspeed", "-w", third ? "3" : "2"}).status,
              0);
    EXPECT_FALSE(fs::exists(back + "/latest"));
    EXPECT_EQ(run_cli({"diff", source, back}).status, 0);
    EXPECT_EQ(run_cli({"reshard", tag, back, "-w", "1", "--force"}).status, 0);
  }
}

TEST_F(CliTest, deepspeeds_partitions_are_written_whole_or_refused) {
  const std::string source = copy_of("frameworks/deepspeed_zero3_w3/ckpt", "zero3");
  const auto refused = [&](std::vector<std::string> more, const std::string& why) {
    std::vector<std::string> words = {"reshard", source, path("out"), "-w", "2"};
    words.insert(words.end(), more.begin(), more.end());
    const CliResult done = run_cli(words);
    EXPECT_EQ(done.status, 2) << done.out;
    EXPECT_THAT(done.err, HasSubstr(why));
    EXPECT_FALSE(fs::exists(path("out")));
  };
  refused({"-k", "model.**"}, "-k and --exclude would leave");
  refused({"--shard", "model.**"}, "--layout dcp");
  EXPECT_EQ(
      run_cli({"convert", source, path("out"), "--to", "deepspeed", "--dtype", "bf16"}).status, 2);
  EXPECT_EQ(
      run_cli({"convert", golden_path("2.11.0/minimal/ckpt"), path("out"), "--to", "per-rank"})
          .status,
      2);
  // A rank of another save.
  fs::copy_file(golden_path("frameworks/deepspeed_zero2_w2/ckpt/global_step2/"
                            "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"),
                source + "/global_step2/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
                fs::copy_options::overwrite_existing);
  refused({}, "error[");
}

TEST_F(CliTest, universal_checkpoints_are_the_same_for_any_number_of_ranks) {
  const std::string source = copy_of("frameworks/deepspeed_universal3_w3/ckpt", "universal");
  for (const char* replaced : {"", "--force"}) {
    std::vector<std::string> words = {"reshard", source, path("out"), "-w", "7"};
    if (*replaced != '\0') words.emplace_back(replaced);
    const CliResult done = run_cli(words);
    ASSERT_EQ(done.status, 0) << done.err;
    EXPECT_THAT(done.out, HasSubstr("the same for any number of ranks"));
  }
  for (const auto& entry : fs::recursive_directory_iterator(source)) {
    if (!entry.is_regular_file()) continue;
    const fs::path name = entry.path().lexically_relative(source);
    EXPECT_EQ(file_bytes(path("out") + "/" + name.string()), file_bytes(entry.path().string()))
        << name;
  }
  std::string damaged = file_bytes(source + "/zero/inp.weight/exp_avg.pt");
  damaged[damaged.size() * 2 / 3] ^= 1;
  write_file(fs::path(source) / "zero/inp.weight/exp_avg.pt", damaged);
  EXPECT_EQ(run_cli({"reshard", source, path("bad"), "-w", "2"}).status, 2);
  EXPECT_FALSE(fs::exists(path("bad")));
}

TEST_F(CliTest, a_step_with_several_parts_stays_one) {
  const std::string step = path("global_step_100");
  for (const char* part : {"actor", "critic"}) {
    fs::create_directories(step);
    fs::copy(golden_path("frameworks/accelerate_fsdp1_sharded_per_rank_w2/ckpt"),
             cat(step, "/", part), fs::copy_options::recursive);
    fs::create_directory(cat(step, "/", part, "/huggingface"));
    write_file(fs::path(step) / part / "huggingface/config.json", "{}\n");
  }
  fs::copy_file(step + "/actor/scheduler.bin", step + "/data.pt");
  const CliResult done = run_cli({"reshard", step, path("out"), "-w", "3"});
  ASSERT_EQ(done.status, 0) << done.err;
  for (const char* part : {"actor", "critic"}) {
    EXPECT_TRUE(fs::exists(cat(path("out"), "/", part, "/pytorch_model_fsdp_0/__2_0.distcp")));
    EXPECT_TRUE(fs::exists(cat(path("out"), "/", part, "/huggingface/config.json")));
    EXPECT_EQ(run_cli({"diff", cat(step, "/", part), cat(path("out"), "/", part)}).status, 0);
  }
  EXPECT_EQ(file_bytes(path("out") + "/data.pt"), file_bytes(step + "/data.pt"));
  EXPECT_EQ(run_cli({"verify", path("out")}).status, 0);
  EXPECT_EQ(run_cli({"reshard", step, path("out"), "-w", "2", "--force"}).status, 0);
  const CliResult narrowed = run_cli({"reshard", step, path("no"), "-w", "3", "-k", "actor.**"});
  EXPECT_EQ(narrowed.status, 2);
  EXPECT_THAT(narrowed.err, HasSubstr("--layout dcp"));
  // A part that has no layout for ranks.
  fs::copy(golden_path("frameworks/trainer_bin/ckpt"), step + "/ref", fs::copy_options::recursive);
  const CliResult mixed = run_cli({"reshard", step, path("no"), "-w", "3"});
  EXPECT_EQ(mixed.status, 2);
  EXPECT_THAT(mixed.err, HasSubstr("global_step_100/ref: is a Hugging Face Trainer's checkpoint"));
  EXPECT_FALSE(fs::exists(path("no")));
}

TEST_F(CliTest, files_of_ranks_on_a_mesh_of_two_dimensions_are_refused_by_name) {
  const std::string source = golden_path("frameworks/per_rank_tp_w4/ckpt");
  const CliResult done = run_cli({"reshard", source, path("out"), "--world-size", "2"});
  EXPECT_EQ(done.status, 2);
  EXPECT_THAT(done.err, HasSubstr("error[UNSUPPORTED]"));
  EXPECT_THAT(done.err, HasSubstr("--layout dcp writes a torch.distributed.checkpoint folder"));
  EXPECT_TRUE(names().empty());
  EXPECT_EQ(
      run_cli({"reshard", source, path("out"), "--world-size", "2", "--layout", "dcp"}).status, 0);
}

}  // namespace
}  // namespace fsdp::cli
