// SPDX-License-Identifier: Apache-2.0
#include "tools/command/word_order.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tools/run_cli.h"
#include "tools/command/verb_record.h"

namespace fsdp::cli {
namespace {

using testing::HasSubstr;
using Words = std::vector<std::string>;

TEST(WordOrder, options_before_the_verb_move_behind_it_with_their_values) {
  EXPECT_EQ(verb_first({"-q", "inspect", "x"}), (Words{"inspect", "-q", "x"}));
  EXPECT_EQ(verb_first({"--threads", "2", "--json", "verify", "x", "--fast"}),
            (Words{"verify", "--threads", "2", "--json", "x", "--fast"}));
  EXPECT_EQ(verb_first({"--threads=2", "verify", "x"}), (Words{"verify", "--threads=2", "x"}));
  EXPECT_EQ(verb_first({"-k", "inspect", "diff", "a"}), (Words{"diff", "-k", "inspect", "a"}));
  EXPECT_EQ(verb_first({"-ka.*", "ls", "x"}), (Words{"ls", "-ka.*", "x"}));
  EXPECT_EQ(verb_first({"shard", "x", "-w=4", "-q=1"}), (Words{"shard", "x", "-w4", "-q=1"}));
  EXPECT_EQ(verb_first({"ls", "--", "-w=4"}), (Words{"ls", "--", "-w=4"}));
  EXPECT_EQ(verb_first({"-qk", "a.*", "ls", "x"}), (Words{"ls", "-qk", "a.*", "x"}));
  EXPECT_EQ(verb_first({"--depth", "1", "ls", "x"}), (Words{"ls", "--depth", "1", "x"}));
}

TEST(WordOrder, words_that_are_in_order_or_have_no_verb_stay) {
  for (const Words& words : std::vector<Words>{{},
                                               {"inspect", "-q", "x"},
                                               {"--help"},
                                               {"-v"},
                                               {"--version", "inspect"},
                                               {"-k"},
                                               {"-k", "inspect"},
                                               {"--", "inspect"},
                                               {""}}) {
    EXPECT_EQ(verb_first(words), words);
  }
}

TEST(WordOrder, help_of_a_verb_is_its_option) {
  EXPECT_EQ(verb_first({"help"}), Words{"--help"});
  EXPECT_EQ(verb_first({"help", "diff"}), (Words{"diff", "--help"}));
  EXPECT_EQ(verb_first({"-q", "help", "--json", "diff"}), (Words{"diff", "--help"}));
  EXPECT_EQ(verb_first({"inspect", "help"}), (Words{"inspect", "help"}));
}

// Before the verb is known, only the name tells whether a value follows.
TEST(WordOrder, no_option_has_a_value_in_one_verb_and_none_in_another) {
  std::map<std::string, bool> has_value;
  std::size_t checked = 0;
  for (const VerbRecord& verb : verb_records()) {
    for (const OptionRecord& option : verb.options) {
      for (const std::string& name : option.names) {
        const auto [at, fresh] = has_value.try_emplace(name, !option.type.empty());
        EXPECT_EQ(at->second, !option.type.empty()) << verb.name << ' ' << name;
        checked += fresh ? 0 : 1;
      }
    }
  }
  EXPECT_GT(checked, 10U);
}

TEST_F(CliTest, help_and_options_are_understood_before_the_verb) {
  const std::string good = golden_path("2.11.0/minimal/ckpt");
  EXPECT_EQ(run_cli({"help", "verify"}).out, run_cli({"verify", "--help"}).out);
  EXPECT_EQ(run_cli({"help"}).out, run_cli({"--help"}).out);
  EXPECT_EQ(run_cli({"-v"}).out, run_cli({"--version"}).out);
  EXPECT_EQ(run_cli({"-V"}).out, run_cli({"--version"}).out);
  EXPECT_EQ(run_cli({"--json", "inspect", good}).out, run_cli({"inspect", good, "--json"}).out);
  EXPECT_EQ(run_cli({"inspect", good, "-d", "0"}).out, run_cli({"inspect", good, "--depth=0"}).out);
  EXPECT_THAT(run_cli({"help", "inspct"}).err, HasSubstr("unknown verb 'inspct'; did you mean"));
  EXPECT_THAT(run_cli({"--nope", "inspect", good}).err, HasSubstr("unknown option '--nope'"));
  EXPECT_THAT(run_cli({"--json"}).err, HasSubstr("no verb was given"));
}

}  // namespace
}  // namespace fsdp::cli
