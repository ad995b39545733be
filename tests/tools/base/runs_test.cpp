// SPDX-License-Identifier: Apache-2.0
// Folders of runs, and several checkpoints at once.
#include "tools/base/runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/json.h"
#include "tests/tools/run_cli.h"

namespace fsdp::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::vector<std::string> paths_of(const std::vector<formats::Step>& steps) {
  std::vector<std::string> paths;
  for (const formats::Step& step : steps) paths.push_back(step.path);
  return paths;
}

TEST(Runs, the_newest_comes_first_and_later_ones_of_a_step_before) {
  EXPECT_THAT(
      paths_of(newest_first(
          {{"last", {}, {}}, {"step-2", {}, {}}, {"step-10", {}, {}}, {"step-10.pt", {}, {}}})),
      ElementsAre("step-10.pt", "step-10", "step-2", "last"));
}

class RunsTest : public CliTest {
 protected:
  // step-2 and step-10 are sound, step-20 lost a file, deep/step-5 lies a level below.
  std::string run() const {
    std::filesystem::create_directories(path("run/deep"));
    std::filesystem::create_directories(path("run/logs"));
    write_file(path("run/notes.txt"), "lr: 0.1\n");
    for (const char* step : {"step-2", "step-10", "step-20", "deep/step-5"})
      copy_of("2.11.0/minimal/ckpt", std::string("run/") + step);
    std::filesystem::remove(path("run/step-20/__0_0.distcp"));
    std::filesystem::create_directory_symlink(path("run/step-10"), path("run/latest"));
    return path("run");
  }
};

TEST_F(RunsTest, checkpoints_below_a_folder_are_found_in_natural_order) {
  const std::string folder = run();
  EXPECT_THAT(paths_of(listed_steps(folder, {})),
              ElementsAre(folder + "/deep/step-5", folder + "/step-2", folder + "/step-10",
                          folder + "/step-20"));
  EXPECT_TRUE(listed_steps(folder + "/step-2", {}).empty());
  EXPECT_TRUE(listed_steps(folder + "/logs", {}).empty());
  EXPECT_TRUE(listed_steps(path("nowhere"), {}).empty());
  EXPECT_THAT(paths_of(listed_steps(folder + "/step-2", {path("nowhere")})),
              ElementsAre(folder + "/step-2", path("nowhere")));
}

TEST_F(RunsTest, inspect_lists_them_with_step_size_and_format) {
  const std::string folder = run();
  const CliResult result = run_cli({"inspect", folder});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("4 checkpoints\n"));
  EXPECT_THAT(result.out, HasSubstr("  step 10  2.8 KiB  1 tensor  sharded checkpoint (torch"));
  EXPECT_THAT(result.out, Not(HasSubstr("latest")));
  const formats::Json json = formats::parse_json(run_cli({"inspect", folder, "--json"}).out);
  EXPECT_EQ(*json.find("schema")->as_string(), "fsdp-ckpt/inspect-run/1");
  ASSERT_EQ(json.find("checkpoints")->as_array()->size(), 4U);
  EXPECT_EQ(*json.find("checkpoints")->as_array()->at(2).find("step")->as_int(), 10);
}

TEST_F(RunsTest, inspect_of_several_lists_what_opens_and_fails_for_what_does_not) {
  const std::string folder = run();
  const CliResult result = run_cli({"inspect", folder + "/step-2", path("no"), folder});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.out, HasSubstr("6 checkpoints\n"));
  EXPECT_THAT(result.out, HasSubstr("error[NOT_FOUND]"));
  EXPECT_THAT(result.err, HasSubstr("error[NOT_FOUND]: " + path("no") + ": no such file"));
}

// The entry of a step in the data of a page, as JSON without blanks; empty if there is none.
std::string entry(const std::string& page, const std::string& step) {
  const std::string begin = "id=\"data\">";
  const std::size_t at = page.find(begin) + begin.size();
  const formats::Json data = formats::parse_json(page.substr(at, page.find("</script>", at) - at));
  for (const formats::Json& one : *data.find("checkpoints")->as_array()) {
    if (*one.find("path")->as_string() == step) return formats::to_text(one);
  }
  return {};
}

TEST_F(RunsTest, inspect_html_of_a_run_calls_nothing_sound_that_was_not_verified) {
  const std::string folder = run();
  const std::string html = path("run.html");
  const CliResult first = run_cli({"inspect", folder, "--html", html});
  EXPECT_EQ(first.status, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("run.html: a page of 4 checkpoints\n"));
  const std::string page = file_bytes(html);
  EXPECT_THAT(page, HasSubstr("\"verified\":false"));
  EXPECT_THAT(page, Not(HasSubstr("\"soundness\":")));
  // The oldest is the first, and each is compared with the one before it in its series.
  const std::string two = entry(page, folder + "/step-2");
  EXPECT_THAT(two, Not(HasSubstr("\"before\"")));
  const std::string ten = entry(page, folder + "/step-10");
  EXPECT_THAT(ten, HasSubstr("\"before\":\"" + folder + "/step-2\""));
  EXPECT_LT(page.find(folder + "/step-2\""), page.find(folder + "/step-10\""));
  EXPECT_THAT(entry(page, folder + "/step-20"), HasSubstr("\"missing\":1"));

  EXPECT_EQ(run_cli({"inspect", folder, "--html", html}).status, 2);
  EXPECT_EQ(run_cli({"inspect", folder, "--html", html, "--force", "--json"}).status, 0);
  EXPECT_EQ(file_bytes(html), page);
  const CliResult within = run_cli({"inspect", folder, "--html", folder + "/p.html"});
  EXPECT_THAT(within.err, HasSubstr("error[SAME_PATH]"));
  EXPECT_FALSE(std::filesystem::exists(folder + "/p.html"));
}

TEST_F(RunsTest, inspect_html_of_several_has_a_page_with_those_that_do_not_open) {
  const std::string folder = run();
  const CliResult result =
      run_cli({"inspect", folder + "/step-2", path("no"), "--html", path("p.html")});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr("error[NOT_FOUND]: " + path("no") + ": no such file"));
  const std::string page = file_bytes(path("p.html"));
  EXPECT_THAT(entry(page, path("no")), HasSubstr("\"error\":[\"NOT_FOUND\","));
  EXPECT_THAT(entry(page, folder + "/step-2"), HasSubstr("\"tensors\":1,"));
}

// step-400 of PyTorch against one from which a tensor was taken, and in which a value has changed.
TEST_F(RunsTest, inspect_html_of_a_run_lists_what_changed) {
  const std::string golden = golden_path("2.15.0/fsdp2/ckpt");
  std::filesystem::create_directories(path("run"));
  std::filesystem::copy(golden, path("run/step-1"), std::filesystem::copy_options::recursive);
  ASSERT_EQ(run_cli({"set", golden, path("changed"), "step=9", "--no-sync"}).status, 0);
  ASSERT_EQ(run_cli({"rename", path("changed"), path("run/step-2"), "--drop", "app.model.ln.bias"})
                .status,
            0);
  ASSERT_EQ(run_cli({"inspect", path("run"), "--html", path("p.html")}).status, 0);
  const std::string two = entry(file_bytes(path("p.html")), path("run/step-2"));
  // The states of the parameter go with it, and so does its name in the group.
  EXPECT_THAT(two,
              HasSubstr("\"tensor_changes\":{\"added\":[0,[]],\"removed\":[4,[[\"app.model.ln."
                        "bias\",\"float32 [26]\",\"\"],[\"app.optim.state.ln.bias.exp_avg\","));
  EXPECT_THAT(two,
              HasSubstr("\"value_changes\":{\"added\":[0,[]],\"removed\":[0,[]],\"changed\":[2,"
                        "[[\"app.optim.param_groups.0.params\","));
  EXPECT_THAT(two, HasSubstr(",[\"step\",\"2\",\"9\"]]]}"));
}

TEST_F(RunsTest, verify_html_says_what_was_verified_and_how) {
  const std::string folder = run();
  const CliResult result = run_cli({"verify", folder, path("no"), "--html", path("p.html")});
  EXPECT_EQ(result.status, 2);
  const std::string page = file_bytes(path("p.html"));
  EXPECT_THAT(page, HasSubstr("\"verified\":true"));
  EXPECT_THAT(entry(page, folder + "/step-10"), HasSubstr("\"soundness\":[\"sound\",\""));
  EXPECT_THAT(entry(page, folder + "/step-10"), HasSubstr("checked against CRC-32"));
  EXPECT_THAT(entry(page, folder + "/step-20"), HasSubstr("\"soundness\":[\"damaged\",\""));
  EXPECT_THAT(entry(page, folder + "/step-20"), HasSubstr("[\"damage\",\"SHARD_MISSING\","));
  EXPECT_THAT(entry(page, folder + "/step-10"), HasSubstr(",[0,[]],false]"));
  EXPECT_THAT(entry(page, path("no")), HasSubstr("\"soundness\":[\"\",\""));
  ASSERT_EQ(run_cli({"verify", folder + "/step-2", "--fast", "--html", path("one.html")}).status,
            0);
  EXPECT_THAT(entry(file_bytes(path("one.html")), folder + "/step-2"),
              HasSubstr("only metadata and sizes (--fast)\",[0,[]],true]"));
}

TEST_F(RunsTest, inspect_with_a_limit_refuses_several) {
  const std::string folder = run();
  const std::string step = folder + "/step-2";
  EXPECT_EQ(run_cli({"inspect", "--max-bytes", "1GiB", step}).status, 0);
  for (const CliResult& result : {run_cli({"inspect", "--max-bytes", "1GiB", folder}),
                                  run_cli({"inspect", "--max-bytes", "1GiB", step, step})}) {
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.err, HasSubstr("--max-bytes takes one PATH"));
  }
}

TEST_F(RunsTest, verify_says_which_are_sound_and_ends_as_the_worst) {
  const std::string folder = run();
  const CliResult result = run_cli({"verify", folder});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.out, HasSubstr(folder + "/step-10: sound"));
  EXPECT_THAT(result.out, HasSubstr(folder + "/step-20: damaged"));
  EXPECT_THAT(result.out, HasSubstr("3 of 4 checkpoints sound, 1 not sound; the newest sound one "
                                    "is " +
                                    folder + "/step-10\n"));
  const formats::Json json = formats::parse_json(run_cli({"verify", folder, "--json"}).out);
  EXPECT_FALSE(*json.find("sound")->as_bool());
  EXPECT_EQ(*json.find("newest_sound")->as_string(), folder + "/step-10");
  EXPECT_EQ(json.find("checkpoints")->as_array()->size(), 4U);
  std::filesystem::remove_all(folder + "/step-20");
  EXPECT_EQ(run_cli({"verify", folder}).status, 0);
  EXPECT_EQ(run_cli({"verify", folder, "-q"}).out, "");
  const CliResult worse = run_cli({"verify", folder, path("no")});
  EXPECT_EQ(worse.status, 2);
  EXPECT_THAT(worse.out, HasSubstr("3 of 4 checkpoints sound, 1 not verified"));
  EXPECT_THAT(worse.err, HasSubstr("error[NOT_FOUND]"));
}

// A file that lost its content must not vanish from the list.
TEST_F(RunsTest, files_without_their_content_are_errors_and_not_left_out) {
  const std::string folder = run();
  std::filesystem::remove_all(folder + "/step-20");
  ASSERT_EQ(run_cli({"verify", folder}).status, 0);
  constexpr const char* kEmpty = "damage[EMPTY]";
  constexpr const char* kUnknown = "error[UNKNOWN_FORMAT]";
  const std::pair<const char*, const char*> lost[] = {
      {"last.ckpt", kEmpty},      {"deep/model.pt", kEmpty}, {"pytorch_model.bin", kEmpty},
      {"weights.h5", kEmpty},     {"zeroed.pt", kUnknown},   {"zeroed.h5", kUnknown},
      {"optimizer.bin", kUnknown}};
  for (const auto& [name, words] : lost) {
    const std::string zeros(words == kEmpty ? 0 : 4096, '\0');
    write_file(folder + "/" + name, zeros);
    const CliResult verified = run_cli({"verify", folder});
    EXPECT_EQ(verified.status, words == kEmpty ? 1 : 2) << name;
    EXPECT_THAT(verified.out + verified.err,
                HasSubstr(std::string(words) + ": " + folder + "/" + name));
    EXPECT_EQ(run_cli({"inspect", folder}).status, 2) << name;
    std::filesystem::remove(folder + "/" + name);
  }
  // Data sets are called so too.
  write_file(folder + "/train.bin", std::string(4096, '\0'));
  EXPECT_EQ(run_cli({"verify", folder}).status, 0);
}

// safetensors files make the folder itself a checkpoint, with others inside.
TEST_F(RunsTest, verify_reads_every_checkpoint_inside_and_inspect_tells_of_them) {
  const std::string folder = run();
  std::filesystem::copy(golden_path("2.11.0/hf_plain/ckpt"), folder,
                        std::filesystem::copy_options::recursive);
  const CliResult result = run_cli({"verify", folder});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.out, HasSubstr("part .: sound\n"));
  EXPECT_THAT(result.out, HasSubstr("part step-10: sound\n"));
  EXPECT_THAT(result.out, HasSubstr("part step-20: damaged\n"));
  EXPECT_THAT(result.out, HasSubstr("damage[SHARD_MISSING]: step-20/__0_0.distcp"));
  const CliResult shown = run_cli({"inspect", folder});
  EXPECT_THAT(
      shown.err,
      HasSubstr("checkpoints inside that were not read: deep/step-5, step-2, step-10, step-20"));
  EXPECT_EQ(run_cli({"inspect", folder, "-q"}).err, "");
}

TEST_F(RunsTest, verbs_that_read_one_checkpoint_tell_of_those_beside_it) {
  const std::string folder = run();
  std::filesystem::copy(golden_path("2.11.0/hf_plain/ckpt"), folder,
                        std::filesystem::copy_options::recursive);
  const auto note =
      HasSubstr("checkpoints inside that were not read: deep/step-5, step-2, step-10, step-20\n");
  const std::vector<std::vector<std::string>> commands = {
      {"consolidate", folder, path("out.pt")},
      {"convert", folder, path("out.safetensors")},
      {"export", folder, path("out")},
      {"reshard", folder, path("out"), "--world-size", "2"},
      {"rename", folder, path("out"), "--rename", "^=x."},
      {"stats", folder},
      {"average", folder, folder, path("out.pt")},
      {"diff", folder, folder},
      {"extract", folder, "*", path("out")},
  };
  for (std::vector<std::string> command : commands) {
    EXPECT_THAT(run_cli(command).err, note) << command[0];
    for (const char* name : {"out.pt", "out.safetensors", "out"})
      std::filesystem::remove_all(path(name));
    command.emplace_back("--quiet");
    EXPECT_THAT(run_cli(command).err, Not(note)) << command[0];
    for (const char* name : {"out.pt", "out.safetensors", "out"})
      std::filesystem::remove_all(path(name));
  }
}

TEST_F(RunsTest, an_interrupted_save_in_a_run_is_damaged) {
  const std::string folder = run();
  std::filesystem::remove(folder + "/step-20/.metadata");
  write_file(folder + "/step-20/__0_0.distcp", "half");
  const CliResult result = run_cli({"verify", folder});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.out, HasSubstr("damage[NO_METADATA]"));
}

TEST_F(RunsTest, errors_and_damage_are_red_where_colour_is_asked_for) {
  const std::string folder = run();
  EXPECT_THAT(run_cli({"verify", folder + "/step-20", "--color", "always"}).out,
              HasSubstr("\x1b[31mdamage[SHARD_MISSING]\x1b[0m: "));
  EXPECT_THAT(run_cli({"inspect", path("no"), "--color=always"}).err,
              HasSubstr("fsdp-ckpt: \x1b[31merror[NOT_FOUND]\x1b[0m: "));
  EXPECT_THAT(run_cli({"inspect", path("no")}).err, Not(HasSubstr("\x1b")));
  EXPECT_THAT(run_cli({"verify", folder + "/step-20"}).out, Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace fsdp::cli
