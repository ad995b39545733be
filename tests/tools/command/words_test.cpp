// SPDX-License-Identifier: Apache-2.0
// The meaning of words on a command line, in every verb: selections, prefixes, threads; and the
// reports on what was done.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"
#include "formats/front/open.h"
#include "formats/state/content/placed_leaves.h"
#include "tests/support/no_threads.h"
#include "tests/tools/run_cli.h"
#include "tools/base/placed.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using testing::HasSubstr;
using testing::Not;

const char* const kFolder = "2.15.0/fsdp2/ckpt";

class WordsTest : public CliTest {
 protected:
  // A safetensors file of one float32 number for every name.
  std::string flat(const std::string& name, const std::vector<std::string>& names) const {
    std::string header = "{";
    for (std::size_t i = 0; i < names.size(); ++i) {
      header += i == 0 ? "" : ",";
      formats::append_json_string(header, names[i]);
      header += cat(R"(:{"dtype":"F32","shape":[1],"data_offsets":[)", 4 * i, ",", 4 * i + 4, "]}");
    }
    header += "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    std::string file(8, '\0');
    for (std::size_t i = 0; i < 8; ++i)
      file[i] = static_cast<char>((header.size() >> (8 * i)) & 0xFFU);
    write_file(path(name), file + header + std::string(4 * names.size(), '\1'));
    return path(name);
  }
  static void refused(const std::vector<std::string>& args, const std::string& code) {
    const CliResult result = run_cli(args);
    EXPECT_EQ(result.status, 2) << args[0] << ' ' << result.out;
    EXPECT_THAT(result.err, HasSubstr("error[" + code + "]")) << args[0];
  }
};

TEST_F(WordsTest, a_selection_that_matches_nothing_is_refused_in_every_verb) {
  const std::string source = golden_path(kFolder);
  const std::string out = path("out");
  const std::string adapter = test::data_path("adapters/blocks").native();
  const std::vector<std::vector<std::string>> verbs = {
      {"inspect", source},
      {"inspect", source, "--globals"},
      {"verify", source},
      {"verify", source, "--fast"},
      {"stats", source},
      {"diff", source, source},
      {"consolidate", source, out + ".pt"},
      {"convert", source, out + ".h5"},
      {"shard", source, out, "--world-size", "2"},
      {"reshard", source, out, "--world-size", "3"},
      {"rename", source, out, "--rename", "blocks=layers"},
      {"rekey", source, out, "--key-by", "id"},
      {"extract-lora", source, source, out, "--rank", "2"},
      {"merge-lora", source, adapter, out + ".pt"},
      {"merge-lora", source, out + ".pt", "--alpha", "1"},
      {"merge-lora", source, out, "--adapter-only", "--alpha", "1"},
      {"map", test::data_path("rules/shards.toml").native(), source, out + ".pt"},
      {"export", source, out},
      {"import", source, out, "--map", "none"},
      {"set", source, out, "step=1"},
      {"resize-vocab", source, out, "--to", "dcp", "--size", "5", "--table", "app.model.emb.*"},
      {"groups", source, out, "--split", "**.bias"},
      {"salvage", source, out},
      {"extract", source, "step"}};
  for (std::vector<std::string> verb : verbs) {
    verb.insert(verb.end(), {"-k", "no.such.**"});
    refused(verb, "NOT_FOUND");
    if (verb[0] == "extract") continue;
    verb.insert(verb.end(), {"-k", "app.model.**"});
    refused(verb, "NOT_FOUND");
  }
  refused({"verify", source, "-k", "step", "--exclude", "**"}, "NOT_FOUND");
  EXPECT_TRUE(names().empty());
}

TEST_F(WordsTest, a_module_is_not_taken_for_the_model) {
  const std::string llama = flat("a.safetensors", {"lm_head.weight", "model.emb", "model.norm"});
  refused({"consolidate", llama, path("o.pt"), "-k", "model.**"}, "USAGE");
  EXPECT_THAT(run_cli({"stats", llama, "-k", "model.**"}).err,
              HasSubstr("'model.**' is a module of the model here, not the whole of it: "
                        "'lm_head.weight' lies beside it"));
  for (const char* verb : {"inspect", "verify"}) refused({verb, llama, "-k", "model.**"}, "USAGE");
  EXPECT_EQ(run_cli({"verify", llama, "-k", "model.**", "--exclude", "lm_head.*"}).status, 0);
  EXPECT_EQ(run_cli({"verify", llama, "-k", "model.**", "-k", "lm_head.*"}).status, 0);
  EXPECT_EQ(run_cli({"verify", llama, "-k", "model.norm"}).status, 0);
  const std::string whole = flat("b.safetensors", {"model.emb", "model.norm", "optimizer.x"});
  EXPECT_EQ(run_cli({"verify", whole, "-k", "model.**"}).status, 0);
  refused({"consolidate", llama, path("o.pt"), "--strip-prefix", "model"}, "USAGE");
  refused({"rename", llama, path("o.pt"), "--strip-prefix", "model"}, "USAGE");
  EXPECT_EQ(run_cli({"consolidate", llama, path("o.pt"), "--strip-prefix", "model", "-k",
                     "model.**", "--exclude", "lm_head.*"})
                .status,
            0);
}

TEST_F(WordsTest, a_prefix_is_whole_parts_of_keys_in_diff_too) {
  const std::string a = flat("a.safetensors", {"model.w", "models.w"});
  const std::string b = flat("b.safetensors", {"w", "models.w"});
  EXPECT_EQ(run_cli({"diff", a, b, "--strip-prefix-a", "model"}).status, 0);
  refused({"diff", a, b, "--strip-prefix-a", "mod"}, "REKEY_UNUSED");
}

TEST_F(WordsTest, new_names_are_shown_and_dropped_ones_named) {
  const std::string source = golden_path(kFolder);
  const std::vector<std::string> strip = {"consolidate",  source,           path("o.pt"), "-k",
                                          "app.model.**", "--strip-prefix", "app.model",  "-n"};
  EXPECT_THAT(run_cli(strip).out, HasSubstr("\n  app.model.emb.weight -> emb.weight\n"));
  std::vector<std::string> json = strip;
  json.emplace_back("--json");
  const formats::Json said = formats::parse_json(run_cli(json).out);
  ASSERT_EQ(said.find("renames")->as_array()->size(), 23U);
  for (const formats::Json& rename : *said.find("renames")->as_array()) {
    EXPECT_EQ(*rename.find("from")->as_string(), "app.model." + *rename.find("to")->as_string());
  }
  const CliResult dropped = run_cli({"rename", source, path("o"), "--drop", "step"});
  EXPECT_THAT(dropped.out, HasSubstr("dropped: 1 key\n  step\n"));
  EXPECT_THAT(run_cli({"rekey", source, path("r"), "--key-by", "id", "-n"}).out,
              HasSubstr("\n  emb.weight -> 0\n"));
}

TEST_F(WordsTest, what_a_folder_numbers_has_integer_keys_again) {
  ASSERT_EQ(run_cli({"rekey", golden_path(kFolder), path("ids"), "--key-by", "id"}).status, 0);
  ASSERT_EQ(run_cli({"consolidate", path("ids"), path("ids.pt")}).status, 0);
  const auto checkpoint = formats::open_checkpoint(path("ids.pt"));
  const formats::Value root = *checkpoint->tree();
  const formats::Value& state = *root.find("app")->find("optim")->find("state");
  ASSERT_EQ(formats::members_of(state).size(), 19U);
  for (const auto& [key, value] : formats::members_of(state)) EXPECT_TRUE(key.as_int());
  EXPECT_EQ(run_cli({"diff", path("ids"), path("ids.pt")}).status, 0);
}

TEST_F(WordsTest, a_selection_of_a_sound_folder_is_sound) {
  for (const char* keys : {"app.model.**", "step", "app.optim.state.**.exp_avg"}) {
    const CliResult result = run_cli({"verify", golden_path(kFolder), "-k", keys, "--strict"});
    EXPECT_EQ(result.status, 0) << keys << result.out;
  }
}

TEST_F(WordsTest, a_truncated_file_is_one_finding) {
  const std::string source = copy_of(kFolder, "cut");
  std::filesystem::resize_file(source + "/__0_0.distcp", 5000);
  const CliResult result = run_cli({"verify", source});
  EXPECT_EQ(result.status, 1);
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 2) << result.out;
  EXPECT_THAT(result.out, HasSubstr("reach past the end of the file, which has 5000; so do"));
}

TEST_F(WordsTest, findings_are_listed_up_to_a_limit) {
  const std::string source = copy_of(kFolder, "flipped");
  std::string bytes = file_bytes(source + "/__0_0.distcp");
  for (std::size_t at = 0; at + 4 < bytes.size(); ++at) {
    if (bytes.compare(at, 4, "PK\3\4") == 0) bytes[at + 14] ^= 1;  // the CRC of a record
  }
  write_file(source + "/__0_0.distcp", bytes);
  const auto lines = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"verify", source};
    args.insert(args.end(), more.begin(), more.end());
    const CliResult result = run_cli(args);
    EXPECT_EQ(result.status, 1);
    return std::count(result.out.begin(), result.out.end(), '\n');
  };
  EXPECT_EQ(lines({}), 22);
  EXPECT_EQ(lines({"--limit", "3"}), 5);
  EXPECT_GT(lines({"--limit", "1000"}), 22);
}

TEST_F(WordsTest, names_that_nobody_can_read_are_findings) {
  const std::string odd = flat("odd.safetensors", {"d\u202Ee", "f\u00A0", "plain", "\u00E4"});
  const CliResult result = run_cli({"verify", odd});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.out, HasSubstr("warning[NAME]: 'd\\u202ee': the key has an invisible "
                                    "character, \\u202e, at byte 1\n"));
  EXPECT_THAT(result.out, HasSubstr("'f\\u00a0'"));
  EXPECT_THAT(result.out, Not(HasSubstr("plain")));
  EXPECT_THAT(result.out, Not(HasSubstr("\u00E4")));
  EXPECT_EQ(run_cli({"verify", odd, "--strict"}).status, 1);
  for (const auto& args : std::vector<std::vector<std::string>>{{"inspect", odd},
                                                                {"inspect", odd, "--json"},
                                                                {"stats", odd},
                                                                {"verify", odd, "--json"}}) {
    const CliResult shown = run_cli(args);
    EXPECT_THAT(shown.out, Not(HasSubstr("\u202E"))) << args[0];
    EXPECT_THAT(shown.out, HasSubstr("\\u202e")) << args[0];
  }
}

TEST_F(WordsTest, threads_that_are_not_to_be_had_are_fewer_threads) {
  const test::NoThreads none;
  const std::string source = golden_path(kFolder);
  EXPECT_EQ(run_cli({"consolidate", source, path("a.pt"), "--threads", "8"}).status, 0);
  EXPECT_EQ(run_cli({"reshard", source, path("r"), "--world-size", "3", "--threads", "8"}).status,
            0);
  EXPECT_EQ(run_cli({"verify", path("r"), "--threads", "8"}).status, 0);
  EXPECT_EQ(run_cli({"diff", path("r"), path("a.pt"), "--threads", "8"}).status, 0);
}

TEST_F(WordsTest, what_is_in_place_is_known_after_a_write_alone) {
  ASSERT_EQ(run_cli({"consolidate", golden_path(kFolder), path("a.pt"), "-n"}).status, 0);
  EXPECT_EQ(placed_text(), "");
  ASSERT_EQ(run_cli({"consolidate", golden_path(kFolder), path("a.pt")}).status, 0);
  EXPECT_EQ(placed_text(), "; " + path("a.pt") + " is in place");
  ASSERT_EQ(run_cli({"inspect", path("a.pt")}).status, 0);
  EXPECT_EQ(placed_text(), "");
}

}  // namespace
}  // namespace fsdp::cli
