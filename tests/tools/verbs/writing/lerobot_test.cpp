// SPDX-License-Identifier: Apache-2.0
// Folders of LeRobot, which its own functions wrote (tests/data/make_lerobot.py).
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/json.h"
#include "tests/support/golden.h"
#include "tests/tools/run_cli.h"
#include "tests/tools/tiny_safetensors.h"

namespace fsdp::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kGroups = "training_state/optimizer_param_groups.json";
constexpr const char* kState = "training_state/optimizer_state.safetensors";

std::string lerobot(const std::string& name) {
  return test::data_path("lerobot/" + name).native();
}

int differs(const std::string& a, const std::string& b, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words = {"diff", a, b};
  words.insert(words.end(), more.begin(), more.end());
  const CliResult result = run_cli(words);
  EXPECT_LE(result.status, 1) << result.err;
  return result.status;
}

std::string json_in(const std::string& path) {
  return formats::to_text(formats::parse_json(test::to_text(test::read_file(path))));
}

class LeRobot : public CliTest {
 protected:
  // A copy of the newest checkpoint that may be damaged.
  std::string copied() {
    const std::string copy = path("copy");
    std::filesystem::remove_all(copy);
    std::filesystem::copy(lerobot("run/checkpoints/000002"), copy,
                          std::filesystem::copy_options::recursive);
    return copy;
  }

  // Expects a finding with these words, and that nothing is made of the rest.
  void damaged(const std::string& folder, const std::string& words) {
    const CliResult verified = run_cli({"verify", folder});
    EXPECT_EQ(verified.status, 1) << verified.out;
    EXPECT_THAT(verified.out, HasSubstr(words));
    EXPECT_EQ(run_cli({"consolidate", folder, path("none.pt")}).status, 2);
    EXPECT_FALSE(std::filesystem::exists(path("none.pt")));
  }
};

TEST_F(LeRobot, its_state_is_what_torch_saves) {
  const std::string newest = lerobot("run/checkpoints/000002");
  EXPECT_EQ(run_cli({"verify", newest}).status, 0);
  for (const std::string& source : {newest, lerobot("run/checkpoints/last")}) {
    ASSERT_EQ(run_cli({"consolidate", source, path("full.pt"), "--force"}).status, 0);
    // JSON has no tuples, and the betas are one.
    EXPECT_EQ(differs(path("full.pt"), lerobot("full.pt"),
                      {"-k", "model.**", "-k", "optimizer.**", "--exclude", "**.betas"}),
              0);
  }
  EXPECT_EQ(run_cli({"extract", path("full.pt"), "optimizer.param_groups.0.betas"}).out,
            "[0.9, 0.999]\n");
  EXPECT_EQ(run_cli({"extract", newest, "training_step.step"}).out, "2\n");
  EXPECT_THAT(run_cli({"inspect", newest}).out, HasSubstr("LeRobot's checkpoint"));
  // An older one has other numbers.
  EXPECT_EQ(differs(lerobot("run/checkpoints/000001"), lerobot("full.pt"), {"-k", "optimizer.**"}),
            1);
}

TEST_F(LeRobot, the_newest_of_a_run_is_found) {
  for (const char* run : {"run", "run/checkpoints"}) {
    const CliResult latest = run_cli({"latest", lerobot(run)});
    EXPECT_EQ(latest.status, 0) << latest.err;
    EXPECT_THAT(latest.out, HasSubstr("run/checkpoints/000002\n"));
  }
}

TEST_F(LeRobot, several_optimizers_have_keys_of_their_own) {
  const std::string several = lerobot("several");
  ASSERT_EQ(run_cli({"consolidate", several, path("a.pt")}).status, 0);
  ASSERT_EQ(run_cli({"rename", path("a.pt"), path("b.pt"), "--rename", "optimizer_actor=optimizer"})
                .status,
            0);
  EXPECT_EQ(differs(path("b.pt"), lerobot("run/checkpoints/000002"), {"-k", "optimizer.**"}), 0);
  EXPECT_THAT(run_cli({"convert", several, path("out"), "--to", "lerobot"}).err,
              HasSubstr("the checkpoint has 2 and 1"));
}

TEST_F(LeRobot, a_folder_is_written_as_its_own_functions_do) {
  const std::string own = lerobot("run/checkpoints/000002");
  ASSERT_EQ(run_cli({"rekey", lerobot("full.pt"), path("named.pt"), "--key-by", "name"}).status, 0);
  ASSERT_EQ(run_cli({"convert", path("named.pt"), path("dcp"), "--to", "dcp", "--world-size", "2"})
                .status,
            0);
  for (const std::string& source : {lerobot("full.pt"), path("dcp"), own}) {
    const CliResult made = run_cli({"convert", source, path("out"), "--to", "lerobot", "--force"});
    EXPECT_EQ(made.status, 0) << made.err;
    EXPECT_EQ(json_in(path("out") + "/" + kGroups), json_in(own + "/" + kGroups)) << source;
    EXPECT_EQ(differs(path("out/training_state/optimizer_state.safetensors"), own + "/" + kState),
              0)
        << source;
    EXPECT_EQ(differs(path("out/pretrained_model/model.safetensors"),
                      own + "/pretrained_model/model.safetensors"),
              0);
    const bool whole = source == own;
    EXPECT_EQ(std::filesystem::exists(path("out/training_state/rng_state.safetensors")), whole);
    if (whole) {
      EXPECT_EQ(differs(path("out"), own), 0);
    } else {
      EXPECT_THAT(made.out, HasSubstr("training_state/training_step.json: is not written, because "
                                      "the source has no 'training_step'"));
    }
  }
}

TEST_F(LeRobot, fsdp_gets_names) {
  const CliResult made =
      run_cli({"convert", lerobot("fsdp.pt"), path("out"), "--to", "lerobot-fsdp"});
  EXPECT_EQ(made.status, 0) << made.err;
  EXPECT_EQ(json_in(path("out") + "/" + kGroups), json_in(lerobot("fsdp/") + kGroups));
  EXPECT_EQ(differs(path("out") + "/" + kState, lerobot("fsdp/") + kState), 0);
  ASSERT_EQ(run_cli({"convert", lerobot("fsdp.pt"), path("ids"), "--to", "lerobot"}).status, 0);
  EXPECT_EQ(differs(path("ids") + "/" + kState, lerobot("fsdp/") + kState), 1);
}

TEST_F(LeRobot, a_part_that_is_missing_or_broken_is_named) {
  std::string copy = copied();
  std::filesystem::remove(copy + "/" + kGroups);
  damaged(copy, "optimizer_param_groups.json is missing, and");
  copy = copied();
  std::filesystem::remove(copy + "/" + kState);
  damaged(copy, "optimizer_state.safetensors is missing, and");
  copy = copied();
  std::filesystem::resize_file(copy + "/" + kGroups, 40);
  damaged(copy, "damage[JSON]");
  write_file(copy + "/" + kGroups, R"({"params": [0]})");
  damaged(copy, "is dict, expected a list");
  write_file(copy + "/" + kGroups, R"([{"lr": 1.0}])");
  damaged(copy, "group 0 has no list 'params'");
  write_file(copy + "/" + kGroups, R"([{"params": [0, 1, 2]}])");
  damaged(copy, "holds state of '3', which no group in optimizer_param_groups.json lists");
  copy = copied();
  write_file(copy + "/training_state/scheduler_state.json", "{");
  damaged(copy, "damage[JSON]");
  copy = copied();
  std::filesystem::resize_file(copy + "/" + kState, 900);
  EXPECT_EQ(run_cli({"verify", copy}).status, 1);
}

TEST_F(LeRobot, keys_that_are_no_states_and_shapes_that_do_not_fit_are_refused) {
  const std::string copy = copied();
  for (const std::string key : {"other/0/step", "state/0", "state//step", "state/0/"}) {
    TinySafetensors file;
    file.count(key, {});
    file.write(copy + "/" + kState);
    damaged(copy, "is not of the form state/PARAMETER/NAME");
  }
  TinySafetensors file;
  for (const char* id : {"0", "1", "2", "3"})
    file.count(std::string("state/") + id + "/exp_avg", {5});
  file.write(copy + "/" + kState);
  EXPECT_EQ(run_cli({"verify", copy}).status, 0);
  write_file(path("names.txt"), "0.weight\n1.weight\n0.bias\n1.bias\n");
  ASSERT_EQ(run_cli({"consolidate", copy, path("own.pt")}).status, 0);
  const CliResult rekeyed =
      run_cli({"rekey", path("own.pt"), path("r.pt"), "--key-by", "name", "--names",
               path("names.txt"), "--names-from", copy + "/pretrained_model/model.safetensors"});
  EXPECT_EQ(rekeyed.status, 2);
  EXPECT_THAT(rekeyed.err, HasSubstr("error[SHAPE]"));
}

TEST_F(LeRobot, an_optimizer_without_states_is_one) {
  ASSERT_EQ(
      run_cli({"set", lerobot("full.pt"), path("new.pt"), "--drop", "optimizer.state.**"}).status,
      0);
  const CliResult made = run_cli({"convert", path("new.pt"), path("out"), "--to", "lerobot"});
  EXPECT_EQ(made.status, 0) << made.err;
  EXPECT_EQ(run_cli({"verify", path("out")}).status, 0);
  ASSERT_EQ(run_cli({"consolidate", path("out"), path("read.pt")}).status, 0);
  EXPECT_EQ(run_cli({"extract", path("read.pt"), "optimizer.state"}).out, "{}\n");
}

TEST_F(LeRobot, what_its_files_cannot_hold_is_refused) {
  const auto refused = [&](const std::vector<std::string>& change, const std::string& why) {
    std::vector<std::string> words = {"set", lerobot("full.pt"), path("x.pt"), "--force"};
    words.insert(words.end(), change.begin(), change.end());
    ASSERT_EQ(run_cli(words).status, 0) << run_cli(words).err;
    const CliResult result = run_cli({"convert", path("x.pt"), path("x"), "--to", "lerobot"});
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.err, HasSubstr(why));
    EXPECT_FALSE(std::filesystem::exists(path("x")));
  };
  refused({"optimizer.param_groups.0.lr=nan"}, "'param_groups.0.lr' is not finite");
  refused({"--take-from", lerobot("run/checkpoints/000002"), "--take", "scheduler.**", "--drop",
           "optimizer.**"},
          "the checkpoint has 0 and 1");
  const CliResult rest = run_cli(
      {"convert", test::data_path("averages/nemo.pt").native(), path("x"), "--to", "lerobot"});
  EXPECT_EQ(rest.status, 2) << rest.out;
}

}  // namespace
}  // namespace fsdp::cli
