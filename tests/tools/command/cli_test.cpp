// SPDX-License-Identifier: Apache-2.0
#include "tools/command/cli.h"

#include <sys/stat.h>

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/json.h"
#include "tests/tools/run_cli.h"

namespace fsdp::cli {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST_F(CliTest, wrong_use_is_status_2_and_one_line_that_says_what_is_wrong) {
  const std::string good = golden_path("2.11.0/minimal/ckpt");
  struct Case {
    std::vector<std::string> args;
    std::string fragment;
  };
  for (const Case& c : std::vector<Case>{
           {{"inspct", good}, "unknown verb 'inspct'; did you mean inspect?"},
           {{"frobnicate"}, "unknown verb 'frobnicate'"},
           {{"mr", good}, "unknown verb 'mr'; fsdp-ckpt --help lists them"},
           {{"inspect"}, "PATH is required"},
           {{"inspect", good, "--nope"}, "--nope"},
           {{"inspect", good, "--threads", "0"}, "--threads"},
           {{"inspect", good, "--threads", "4x"}, "--threads"},
           {{"inspect", good, "--threads", "1000000000"}, "--threads"},
           {{"inspect", good, "--threads", "18446744073709551616"}, "--threads"},
           {{"inspect", good, "--max-memory", "lots"}, "size 'lots'"},
           {{"inspect", good, "--max-memory", "1KiB"}, "at least 16.0 MiB"},
           {{"inspect", good, "-k", "a[b"}, "'[' at position 1 is not closed"},
           {{"consolidate", good}, "OUT is required"},
           {{"consolidate", good, path("out.xyz")}, "the suffix '.xyz' does not name a format"},
           {{"consolidate", good, path("out"), "--to", "dcp"}, "--to"},
           {{"consolidate", good, path("out.pt"), "--max-shard-size", "1MB", "--to", "pt"},
            "only safetensors outputs are split"},
           {{"consolidate", good, path("out"), "--max-shard-size", "0"}, "--max-shard-size is 0"},
       }) {
    const CliResult result = run_cli(c.args);
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.err, StartsWith("fsdp-ckpt: error[USAGE]: "));
    EXPECT_THAT(result.err, HasSubstr(c.fragment));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_EQ(result.out, "");
  }
  EXPECT_TRUE(names().empty());
}

TEST_F(CliTest, alone_it_prints_the_help_and_that_no_verb_was_given) {
  const CliResult result = run_cli({});
  EXPECT_EQ(result.status, 2);
  EXPECT_EQ(result.out, run_cli({"--help"}).out);
  EXPECT_EQ(result.err,
            "fsdp-ckpt: error[USAGE]: no verb was given; fsdp-ckpt --help lists them\n");
}

TEST_F(CliTest, a_path_that_is_none_here_is_told_from_other_mistakes) {
  EXPECT_THAT(run_cli({"inspect", "~/runs/step-4"}).err,
              HasSubstr("~/runs/step-4: no such file or folder; type it without quotes"));
  EXPECT_THAT(
      run_cli({"verify", "meta-llama/Llama-3.2-1B"}).err,
      HasSubstr("; hf://meta-llama/Llama-3.2-1B is the repository of that name on the hub"));
  EXPECT_THAT(run_cli({"verify", "./runs"}).err, testing::Not(HasSubstr("hf://")));
}

TEST_F(CliTest, help_and_version_are_results) {
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
           {"--help"}, {"inspect", "--help"}, {"consolidate", "-h"}, {"verify", "--help"}}) {
    const CliResult result = run_cli(args);
    EXPECT_EQ(result.status, 0);
    EXPECT_EQ(result.err, "");
    EXPECT_THAT(result.out, HasSubstr("sage"));
    if (args.size() == 2) {
      EXPECT_THAT(result.out, HasSubstr("Examples:"));
    }
  }
  EXPECT_THAT(
      run_cli({"--version"}).out,
      testing::MatchesRegex("fsdp-ckpt [0-9]+\\.[0-9]+\\.[0-9]+\n"
                            "commit ([0-9a-f]+( with changes)?|unknown), .*ly linked, .+\n"
                            "zlib [0-9.]+, isa-l [0-9.]+, zstd [0-9.]+, .*CLI11 [0-9.]+\n"));
}

TEST_F(CliTest, ls_is_inspect) {
  const std::string good = golden_path("2.11.0/minimal/ckpt");
  EXPECT_EQ(run_cli({"ls", good}).out, run_cli({"inspect", good}).out);
}

TEST_F(CliTest, a_path_that_is_not_there_names_the_nearest_one) {
  copy_of("2.11.0/minimal/ckpt", "step-400");
  const CliResult result = run_cli({"inspect", path("step-40")});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr("error[NOT_FOUND]"));
  EXPECT_THAT(result.err, HasSubstr("did you mean " + path("step-400")));
}

TEST_F(CliTest, one_folder_too_high_or_too_low_names_the_checkpoint) {
  copy_of("2.11.0/minimal/ckpt", "step-400");
  std::filesystem::create_directory(folder() / "step-400" / "logs");
  for (const std::string& near : {folder().native(), path("step-400/logs")}) {
    const CliResult result = run_cli({"stats", near});
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.err, HasSubstr("error[UNKNOWN_FORMAT]"));
    EXPECT_THAT(result.err, HasSubstr(path("step-400")));
  }
}

TEST_F(CliTest, metadata_and_data_files_stand_for_their_folder) {
  const std::string folder = copy_of("2.11.0/minimal/ckpt", "c");
  const std::string tensors = run_cli({"inspect", folder, "-q"}).out;
  EXPECT_EQ(run_cli({"inspect", folder + "/.metadata", "-q"}).out, tensors);
  EXPECT_EQ(run_cli({"inspect", folder + "/__0_0.distcp", "-q"}).out, tensors);
  EXPECT_EQ(run_cli({"inspect", folder + "/", "-q"}).status, 0);
}

TEST_F(CliTest, things_that_are_no_checkpoint_are_refused_by_kind) {
  write_file(path("text"), "hello");
  write_file(path("empty"), "");
  std::filesystem::create_directory(path("folder"));
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  struct Case {
    std::string path;
    std::string code;
  };
  for (const Case& c : std::vector<Case>{{path("text"), "UNKNOWN_FORMAT"},
                                         {path("empty"), "EMPTY"},
                                         {path("folder"), "UNKNOWN_FORMAT"},
                                         {path("pipe"), "NOT_REGULAR"},
                                         {"/dev/zero", "NOT_REGULAR"},
                                         {path("text") + "/x", "NOT_FOUND"},
                                         {std::string(5000, 'a'), "IO"},
                                         {"", "NOT_FOUND"}}) {
    const CliResult result = run_cli({"inspect", c.path});
    EXPECT_EQ(result.status, 2) << c.path;
    EXPECT_THAT(result.err, HasSubstr("error[" + c.code + "]")) << c.path;
  }
}

TEST_F(CliTest, a_name_that_is_not_utf8_is_opened_and_escaped) {
  const std::string name = path("step-\xff");
  copy_of("2.11.0/minimal/ckpt", "step-\xff");
  const CliResult result = run_cli({"inspect", name});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.out, HasSubstr("step-\\xff"));
}

TEST_F(CliTest, a_url_is_called_what_it_is) {
  const std::string good = golden_path("2.11.0/minimal/ckpt");
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"inspect", "https://host/a.pt"},
                                             {"verify", "s3://bucket/run"},
                                             {"consolidate", good, "s3://bucket/a.pt"}}) {
    const CliResult result = run_cli(args);
    EXPECT_EQ(result.status, 2) << args[0];
    EXPECT_THAT(result.err, HasSubstr("error[UNSUPPORTED]: " + args.back() + ": is a URL"));
  }
  EXPECT_FALSE(std::filesystem::exists("s3:"));
}

TEST_F(CliTest, errors_are_json_too_where_json_was_asked_for) {
  const CliResult result = run_cli({"inspect", path("none"), "--json"});
  EXPECT_EQ(result.status, 2);
  const formats::Json json = formats::parse_json(result.out);
  EXPECT_EQ(*json.find("schema")->as_string(), "fsdp-ckpt/error/1");
  EXPECT_EQ(*json.find("code")->as_string(), "NOT_FOUND");
}

}  // namespace
}  // namespace fsdp::cli
