// SPDX-License-Identifier: Apache-2.0
// The help: six groups of verbs, six words each, three tasks, and lines of at most 80 characters.
#include <algorithm>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/text.h"
#include "tests/tools/run_cli.h"
#include "tools/command/verb_record.h"
#include "tools/text/colour.h"

namespace fsdp::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(HelpText, has_six_groups_and_six_words_for_each_verb) {
  const std::string help = tool_help(80);
  std::vector<std::string> groups;
  for (const VerbRecord& verb : verb_records()) {
    if (groups.empty() || groups.back() != verb.group) groups.push_back(verb.group);
    EXPECT_LT(std::count(verb.brief.begin(), verb.brief.end(), ' '), 6) << verb.brief;
    EXPECT_THAT(help, HasSubstr(" " + verb.brief + "\n"));
    EXPECT_TRUE(verb.description.starts_with(verb.brief));
    EXPECT_LE(verb.description.size(), 80U) << verb.description;
  }
  EXPECT_THAT(groups, ElementsAre("Look", "Join and convert", "To and from Hugging Face",
                                  "Other ranks", "Change", "Look after a run"));
  for (const std::string& group : groups) EXPECT_THAT(help, HasSubstr("\n\n" + group + ":\n  "));
  std::istringstream tasks(help.substr(help.find("\nTasks:\n") + 8));
  std::size_t count = 0;
  for (std::string line; std::getline(tasks, line) && !line.empty();) {
    const std::size_t at = line.find("fsdp-ckpt ");
    ASSERT_NE(at, line.npos) << line;
    std::istringstream words(line.substr(at + 10));
    std::string verb;
    words >> verb;
    EXPECT_THAT(help, HasSubstr("\n  " + verb + " ")) << line;
    ++count;
  }
  EXPECT_EQ(count, 3U);
}

TEST(HelpText, has_lines_of_at_most_80_characters) {
  std::vector<std::string> texts = {run_cli({"--help"}).out};
  for (const VerbRecord& verb : verb_records()) texts.push_back(run_cli({"help", verb.name}).out);
  for (const std::string& text : texts) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80U) << line;
  }
  EXPECT_EQ(texts.size(), verb_records().size() + 1);
}

TEST(HelpText, verbs_that_are_taken_for_each_other_say_how_they_differ) {
  EXPECT_THAT(verb_record("consolidate").description, HasSubstr("from_pretrained needs export"));
  EXPECT_THAT(verb_record("convert").description, HasSubstr("with the same keys"));
  EXPECT_THAT(verb_record("export").description, HasSubstr("from_pretrained loads"));
  EXPECT_THAT(verb_record("map").description, HasSubstr("become another's"));
}

TEST(HelpText, a_command_has_all_that_must_be_typed) {
  EXPECT_EQ(command_of(verb_record("reshard")), "fsdp-ckpt reshard PATH OUT --world-size N");
  EXPECT_EQ(command_of(verb_record("merge-lora")), "fsdp-ckpt merge-lora PATH MORE... OUT");
  EXPECT_EQ(command_of(verb_record("maps")), "fsdp-ckpt maps");
}

TEST(Completion, knows_maps_dtypes_and_keys_in_every_shell) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const std::string script = completion_script(shell);
    EXPECT_THAT(script, HasSubstr("torchtitan-llama3-hf")) << shell;
    EXPECT_THAT(script, HasSubstr("bfloat16")) << shell;
    EXPECT_THAT(script, HasSubstr("float8_e4m3fn")) << shell;
    EXPECT_THAT(script, HasSubstr("--print-keys")) << shell;
  }
}

TEST(Colours, a_dumb_terminal_has_none_unless_asked_for) {
  const char* before = std::getenv("TERM");
  const std::string kept = before == nullptr ? "" : before;
  ::unsetenv("NO_COLOR");
  ::setenv("TERM", "xterm", 1);
  EXPECT_TRUE(shows_colours(When::kAuto, true));
  EXPECT_FALSE(shows_colours(When::kAuto, false));
  ::setenv("TERM", "dumb", 1);
  EXPECT_FALSE(shows_colours(When::kAuto, true));
  EXPECT_TRUE(shows_colours(When::kAlways, true));
  ::setenv("TERM", kept.c_str(), 1);
}

}  // namespace
}  // namespace fsdp::cli
