// SPDX-License-Identifier: Apache-2.0
// The words of other programs lead to the verb or option that does it, never to its opposite.
#include "tools/command/typed_words.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdp::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(TypedWords, lead_to_the_verb_and_its_command) {
  struct Case {
    std::string typed;
    std::string remedy;
  };
  for (const Case& c : std::vector<Case>{
           {"info", "; to show what is inside: fsdp-ckpt inspect PATH"},
           {"unshard", "; to join shards into one state dict: fsdp-ckpt consolidate PATH OUT"},
           {"to-hf", "; to write what from_pretrained loads: fsdp-ckpt export PATH OUT"},
           {"dequantize",
            "; to write what from_pretrained loads: fsdp-ckpt export PATH OUT --dequantize"},
           {"resize", "; to lay shards out for N ranks: fsdp-ckpt reshard PATH OUT --world-size N"},
           {"soup", "; to average or add up checkpoints: fsdp-ckpt average PATH MORE... OUT"},
           {"inspct", "; did you mean inspect?"},
           {"frobnicate", "; fsdp-ckpt --help lists them"},
           {"https://host/step-4",
            ", but a checkpoint may be: fsdp-ckpt inspect https://host/step-4"},
       })
    EXPECT_EQ(verb_remedy({c.typed}), c.remedy) << c.typed;
  for (const char* word : {"rm", "delete"})
    EXPECT_THAT(verb_remedy({word}), HasSubstr(": fsdp-ckpt prune PATH --keep N; ")) << word;
  for (const char* word : {"repair", "recover", "rescue"})
    EXPECT_THAT(verb_remedy({word}), HasSubstr(": fsdp-ckpt salvage PATH")) << word;
  EXPECT_THAT(verb_remedy({"merge"}), HasSubstr("fsdp-ckpt consolidate PATH OUT; adapters: fsdp"));
}

// One letter more or less is nearer to the opposite than to anything else.
TEST(TypedWords, never_lead_to_the_opposite) {
  for (const VerbRecord& verb : verb_records()) {
    for (const char* prefix : {"un", "de", "dis", "non", "no-"}) {
      EXPECT_THAT(verb_remedy({prefix + verb.name}), Not(HasSubstr("mean " + verb.name + "?")));
    }
  }
  EXPECT_THAT(verb_remedy({"deshard"}), HasSubstr("fsdp-ckpt consolidate"));
  const VerbRecord consolidate = verb_record("consolidate");
  EXPECT_EQ(option_remedy(consolidate, "--no-seal"), "; leave out --seal");
  EXPECT_EQ(option_remedy(consolidate, "--sync"), "; leave out --no-sync");
  EXPECT_EQ(option_remedy(verb_record("inspect"), "--unfold"), "; see fsdp-ckpt inspect --help");
  EXPECT_THAT(option_remedy(consolidate, "--no-color"), HasSubstr("; did you mean --color WHEN ("));
  // It is --fast where there is one, and never --quiet.
  EXPECT_THAT(option_remedy(verb_record("verify"), "--quick"),
              HasSubstr("; did you mean --fast ("));
  EXPECT_EQ(option_remedy(consolidate, "--quick"), "; see fsdp-ckpt consolidate --help");
}

TEST(TypedWords, options_lead_to_those_that_the_verb_has) {
  const VerbRecord consolidate = verb_record("consolidate");
  EXPECT_EQ(option_remedy(consolidate, "-o"),
            "; OUT is an argument: fsdp-ckpt consolidate PATH OUT");
  EXPECT_EQ(option_remedy(consolidate, "--input=x"),
            "; PATH is an argument: fsdp-ckpt consolidate PATH OUT");
  EXPECT_EQ(option_remedy(verb_record("average"), "--output"),
            "; OUT is an argument: fsdp-ckpt average PATH MORE... OUT");
  EXPECT_EQ(option_remedy(verb_record("verify"), "-o"),
            "; the answer goes to standard output: > FILE");
  EXPECT_EQ(option_remedy(verb_record("extract"), "-o"),
            "; OUT is an argument: fsdp-ckpt extract PATH KEY OUT");
  EXPECT_EQ(option_remedy(verb_record("reshard"), "--world_size=4"),
            "; did you mean --world-size?");
  EXPECT_EQ(option_remedy(consolidate, "--rename"), "; that is a verb: fsdp-ckpt rename PATH OUT");
  EXPECT_EQ(option_remedy(consolidate, "--take-from"), "; fsdp-ckpt set has it");
  EXPECT_EQ(option_remedy(verb_record("prune"), "--yes"), "; nothing is asked, leave it out");
  EXPECT_THAT(option_remedy(consolidate, "--yes"), HasSubstr("; did you mean --force ("));
  EXPECT_EQ(option_remedy(verb_record("reshard"), "--nproc=4"),
            "; did you mean --world-size N (number of ranks of the folder)?");
  EXPECT_EQ(option_remedy(consolidate, "--nproc"), "; see fsdp-ckpt consolidate --help");
  EXPECT_EQ(option_remedy(consolidate, "--sael"), "; did you mean --seal?");
  EXPECT_EQ(option_remedy(consolidate, "-V"), "; fsdp-ckpt --version prints it");
  EXPECT_TRUE(is_foreign_option("--nproc"));
  EXPECT_FALSE(is_foreign_option("--world-size"));
  EXPECT_FALSE(is_foreign_option(""));
}

TEST(TypedWords, the_verb_may_stand_elsewhere) {
  EXPECT_EQ(verb_remedy({"x", "verify"}), "; the verb comes first: fsdp-ckpt verify PATH");
  EXPECT_EQ(verb_remedy({"x", "--verify"}),
            "; a verb has no dashes, and comes first: fsdp-ckpt verify PATH");
  EXPECT_EQ(verb_remedy({"accelerate", "merge-weights", "x"}),
            "; to join shards into one state dict: fsdp-ckpt consolidate PATH OUT");
  EXPECT_EQ(verb_remedy({"Merge_LoRA"}), "; did you mean merge-lora?");
  // Of short words one letter may be wrong.
  EXPECT_EQ(verb_remedy({"sat"}), "; did you mean set?");
  EXPECT_EQ(verb_remedy({"put"}), "; fsdp-ckpt --help lists them");
}

TEST(TypedWords, paths_that_do_not_exist_lead_to_those_that_do) {
  EXPECT_EQ(meant_path("~/x"), "; type it without quotes: only then a shell expands ~");
  EXPECT_EQ(meant_path("$RUN/x"), "; type it without quotes: only then a shell expands $");
  EXPECT_THAT(meant_path("step-*"), HasSubstr("only without quotes"));
  EXPECT_EQ(meant_path("s3:/bucket/x"), "; a URL begins with s3://");
  EXPECT_EQ(meant_path("org/model"), "; hf://org/model is the repository of that name on the hub");
  EXPECT_EQ(meant_path("https://host/x"), "");
  EXPECT_EQ(meant_path("/proc/model"), "; fsdp-ckpt inspect /proc shows what is there");
  EXPECT_EQ(meant_path("/proc/version/"), "; it is a file: /proc/version");
}

}  // namespace
}  // namespace fsdp::cli
