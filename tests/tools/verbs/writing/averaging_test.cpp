// SPDX-License-Identifier: Apache-2.0
// --ema on checkpoints that libraries wrote (tests/data/make_averages.py), compared with what each
// library itself puts in the place of the weights.
#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/golden.h"
#include "tests/tools/run_cli.h"

namespace fsdp::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string average(const std::string& name) {
  return test::data_path("averages/" + name + ".pt").native();
}

class Averaging : public CliTest {
 protected:
  // Compares the model in `made` with that of the library; returns the status of diff.
  static int differs(const std::string& made, const std::string& name,
                     const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {"diff", made, average(name + ".expected"), "--ignore-values"};
    words.insert(words.end(), more.begin(), more.end());
    return run_cli(words).status;
  }

  // Takes the averages of PATH by consolidate.
  CliResult taken(const std::string& source, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {"consolidate", source, path("out.pt"), "--ema", "--force"};
    words.insert(words.end(), more.begin(), more.end());
    return run_cli(words);
  }

  // Returns a copy without a key.
  std::string without(const std::string& name, const std::string& key) {
    const std::string copy = path("without.pt");
    EXPECT_EQ(run_cli({"set", average(name), copy, "--drop", key, "--force"}).status, 0);
    return copy;
  }

  // Expects that both verbs refuse, and nothing is written.
  void refused(const std::string& source, const std::string& why,
               const std::vector<std::string>& more = {}) {
    for (const char* verb : {"consolidate", "export"}) {
      std::vector<std::string> words = {verb, source, path("refused.pt"), "--ema"};
      words.insert(words.end(), more.begin(), more.end());
      const CliResult result = run_cli(words);
      EXPECT_EQ(result.status, 2) << result.out;
      EXPECT_THAT(result.err, HasSubstr(why)) << verb;
      EXPECT_FALSE(std::filesystem::exists(path("refused.pt")));
    }
  }
};

TEST_F(Averaging, averages_are_those_that_each_library_puts_in_place) {
  for (const std::string name :
       {"nemo", "automodel", "averaged_model", "diffusers", "torch_ema", "timm_v2_module",
        "timm_v3_module", "schedule_free_reference", "wrapped_reference"}) {
    const CliResult result = taken(average(name));
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(differs(path("out.pt"), name, {"-k", "model.**"}), 0) << name;
    // Without --ema the weights are others.
    ASSERT_EQ(run_cli({"consolidate", average(name), path("out.pt"), "--force"}).status, 0);
    EXPECT_EQ(differs(path("out.pt"), name, {"-k", "model.**"}), 1) << name;
    ASSERT_EQ(run_cli({"export", average(name), path("hf"), "--ema", "--force"}).status, 0);
    EXPECT_EQ(differs(path("hf"), name, {"--strip-prefix-b", "model"}), 0) << name;
    ASSERT_EQ(run_cli({"export", average(name), path("hf"), "--force"}).status, 0);
    EXPECT_EQ(differs(path("hf"), name, {"--strip-prefix-b", "model"}), 1) << name;
  }
}

TEST_F(Averaging, averages_that_follow_from_an_optimizer_are_computed) {
  for (const std::string name : {"schedule_free", "schedule_free_sgd", "splus"}) {
    const CliResult result = taken(average(name));
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("computed: 8 of them"));
    // The libraries round each step to float32, of numbers below 1.
    EXPECT_EQ(differs(path("out.pt"), name, {"-k", "model.**", "--atol", "6e-8"}), 0) << name;
    EXPECT_EQ(differs(average(name), name, {"-k", "model.**", "--atol", "1e-3"}), 1) << name;
    ASSERT_EQ(run_cli({"export", average(name), path("hf"), "--ema", "--force"}).status, 0);
    EXPECT_EQ(differs(path("hf"), name, {"--strip-prefix-b", "model", "--atol", "6e-8"}), 0);
  }
}

TEST_F(Averaging, averages_beside_a_state_dict_are_taken) {
  for (const std::string name : {"timm_v2", "timm_v3", "lit_ema", "lit_ema_all"}) {
    const CliResult result = taken(average(name));
    EXPECT_EQ(result.status, 0) << result.err;
    const std::vector<std::string> weights = {"-k", "state_dict.**"};
    EXPECT_EQ(differs(path("out.pt"), name, weights), 0) << name;
    EXPECT_EQ(differs(average(name), name, weights), 1) << name;
    for (const bool asked : {true, false}) {
      std::vector<std::string> words = {"export", average(name), path("hf"), "--force"};
      if (asked) words.emplace_back("--ema");
      const CliResult made = run_cli(words);
      ASSERT_EQ(made.status, 0) << made.err;
      EXPECT_EQ(differs(path("hf"), name,
                        {"--strip-prefix-b", "state_dict", "--exclude", "model_ema.**"}),
                asked ? 0 : 1)
          << name;
      EXPECT_THAT(run_cli({"inspect", path("hf")}).out, Not(HasSubstr("model_ema")));
    }
  }
}

TEST_F(Averaging, names_without_dots_are_those_of_the_only_tensors_they_can_be_of) {
  EXPECT_THAT(taken(average("lit_ema")).out,
              HasSubstr("averages: 'state_dict.model_ema', averages of LitEma, for 8 parameters of "
                        "'state_dict'\nkept: 8 tensors, which averages have none of: 'betas'"));
  EXPECT_THAT(run_cli({"export", average("lit_ema"), path("hf")}).out,
              HasSubstr("left out: 'state_dict.model_ema': averages of weights, --ema takes them"));
  refused(without("lit_ema", "state_dict.model.diffusion_model.2.weight"),
          "'state_dict.model_ema': holds an average of 'diffusion_model2weight', and no tensor of "
          "'model' has that name without dots");
  refused(without("lit_ema", "state_dict.model_ema.diffusion_model2weight"),
          "holds no average of 'model.diffusion_model.2.weight'");
  refused(without("lit_ema", "state_dict.model.**"), "has that name without dots");
  ASSERT_EQ(
      run_cli({"rename", average("lit_ema"), path("renamed.pt"), "--rename",
               "state_dict.first_stage_model.0.weight=state_dict.model.diffusion_model.0weight"})
          .status,
      0);
  refused(path("renamed.pt"),
          "which both 'model.diffusion_model.0.weight' and 'model.diffusion_model.0weight' are "
          "without dots");
}

TEST_F(Averaging, wrappers_that_do_not_save_their_momentum_are_named) {
  for (const char* name : {"wrapped", "wrapped_otherwise"})
    refused(average(name), "a ScheduleFreeWrapper does not save its momentum");
}

TEST_F(Averaging, a_schedule_free_optimizer_in_evaluation_has_put_them_in_place) {
  const CliResult result = taken(average("schedule_free_evaluated"));
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, Not(HasSubstr("computed")));
  EXPECT_EQ(differs(path("out.pt"), "schedule_free_evaluated", {"-k", "model.**"}), 0);
}

TEST_F(Averaging, lightning_writes_them_in_the_place_of_the_weights) {
  const CliResult result = taken(average("lightning"));
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("averages: 'state_dict', averages of weights, for 11 "
                                    "parameters of 'current_model_state'\n"));
  for (const auto& [source, key, name] :
       {std::tuple(path("out.pt"), "current_model_state", "a.pt"),
        std::tuple(average("lightning.expected"), "state_dict", "b.pt")}) {
    ASSERT_EQ(run_cli({"consolidate", source, path(name), "-k", std::string(key) + ".**",
                       "--strip-prefix", key})
                  .status,
              0);
  }
  EXPECT_EQ(run_cli({"diff", path("a.pt"), path("b.pt")}).status, 0);
  ASSERT_EQ(run_cli({"export", average("lightning"), path("hf"), "--ema"}).status, 0);
  EXPECT_EQ(differs(path("hf"), "lightning", {"--strip-prefix-b", "state_dict"}), 0);
  const CliResult weights = run_cli({"export", average("lightning"), path("hf"), "--force"});
  EXPECT_THAT(weights.out, HasSubstr("left out: 'state_dict': averages of weights, --ema takes "
                                     "them\nmodel: 'current_model_state'\n"));
  EXPECT_EQ(differs(path("hf"), "lightning", {"--strip-prefix-b", "state_dict"}), 1);
}

TEST_F(Averaging, the_report_says_what_was_taken_kept_and_assumed) {
  EXPECT_THAT(taken(average("nemo")).out,
              HasSubstr("averages: 'optimizer_states.0.ema', averages of NeMo's EMAOptimizer, for "
                        "8 parameters of 'model'\n"
                        "names: of ids, by the order of the model 'model'; shapes agree\n"
                        "kept: 3 tensors, which averages have none of: '1.running_mean', "
                        "'1.running_var', '1.num_batches_tracked'\n"));
  EXPECT_THAT(taken(average("diffusers")).out,
              HasSubstr("assumed: the list has no names, and its order is that of the model "
                        "'model'; numbers and shapes agree\n"));
  EXPECT_THAT(taken(average("nemo"), {"--json"}).out,
              HasSubstr(R"("place": "optimizer_states.0.ema")"));
}

TEST_F(Averaging, names_that_are_given_are_no_assumption) {
  write_file(path("names.txt"),
             "0.weight\n0.bias\n1.weight\n1.bias\n2.weight\n2.bias\n3.weight\n3.bias\n");
  const CliResult result = taken(average("diffusers"), {"--names", path("names.txt")});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, Not(HasSubstr("assumed")));
  EXPECT_EQ(differs(path("out.pt"), "diffusers", {"-k", "model.**"}), 0);
  write_file(path("names.txt"),
             "2.weight\n0.bias\n1.weight\n1.bias\n0.weight\n2.bias\n3.weight\n3.bias\n");
  ASSERT_EQ(taken(average("diffusers"), {"--names", path("names.txt")}).status, 0);
  EXPECT_EQ(differs(path("out.pt"), "diffusers", {"-k", "model.**"}), 1);
  write_file(path("names.txt"),
             "0.bias\n0.weight\n1.weight\n1.bias\n2.weight\n2.bias\n3.weight\n"
             "3.bias\n");
  refused(average("diffusers"), "error[SHAPE]", {"--names", path("names.txt")});
  refused(average("automodel"), "these averages have names", {"--names", path("names.txt")});
  EXPECT_THAT(run_cli({"consolidate", average("nemo"), path("x.pt"), "--names", "n"}).err,
              HasSubstr("--names is for the averages that --ema takes"));
}

TEST_F(Averaging, an_order_that_was_lost_is_not_guessed) {
  // safetensors has names in the order of the alphabet.
  const std::string folder = path("folder");
  std::filesystem::create_directory(folder);
  ASSERT_EQ(run_cli({"consolidate", average("diffusers"), folder + "/model.safetensors", "-k",
                     "model.**", "--strip-prefix", "model"})
                .status,
            0);
  ASSERT_EQ(run_cli({"consolidate", average("diffusers"), path("ema.pt"), "-k", "ema.**",
                     "--strip-prefix", "ema"})
                .status,
            0);
  std::filesystem::rename(path("ema.pt"), folder + "/custom_checkpoint_0.pkl");
  refused(folder, "error[REKEY_AMBIGUOUS]");
  write_file(path("names.txt"),
             "0.weight\n0.bias\n1.weight\n1.bias\n2.weight\n2.bias\n3.weight\n3.bias\n");
  ASSERT_EQ(taken(folder, {"--names", path("names.txt")}).status, 0);
  EXPECT_EQ(differs(path("out.pt"), "diffusers", {"-k", "model.**"}), 0);
}

TEST_F(Averaging, what_does_not_fit_is_refused) {
  refused(without("nemo", "optimizer_states.0.ema.7"),
          "'optimizer_states.0.ema': has 7 averages, the optimizer beside it 8 parameters");
  refused(without("diffusers", "model.3.bias"), "the model 'model' 7");
  refused(without("diffusers", "ema.shadow_params.7"),
          "has 7 averages, the model 'model' 8 parameters");
  refused(without("automodel", "ema.2.weight"),
          "'ema': holds no average of '2.weight', whose name is not one that buffers have");
  refused(without("torch_ema", "ema.**"), "error[KEY]");
  refused(without("splus", "optimizer.state.3.ema"), "the state of '3' has no 'ema'");
  refused(without("schedule_free", "optimizer.state.3.z"), "the state of '3' has no 'z'");
  EXPECT_THAT(
      run_cli({"consolidate", without("automodel", "model.2.weight"), path("x.pt"), "--ema"}).err,
      HasSubstr("'ema': holds averages of '2.weight', which 'model' lacks"));
}

TEST_F(Averaging, several_averages_are_not_chosen_from) {
  ASSERT_EQ(run_cli({"set", average("nemo"), path("two.pt"), "--take-from", average("diffusers"),
                     "--take", "ema.**"})
                .status,
            0);
  refused(path("two.pt"), "holds several averages, 'optimizer_states.0.ema', 'ema.shadow_params'");
}

}  // namespace
}  // namespace fsdp::cli
