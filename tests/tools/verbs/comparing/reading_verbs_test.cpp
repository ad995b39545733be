// SPDX-License-Identifier: Apache-2.0
// stats, diff and extract on golden checkpoints; tests/interop/check_values.py holds their numbers
// against PyTorch.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/json.h"
#include "tests/tools/run_cli.h"

namespace fsdp::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::string kFolder = "2.15.0/fsdp2/ckpt";
const std::string kOdd = "2.11.0/odd_tensors/ckpt";

class ReadingVerbs : public CliTest {
 protected:
  // The golden folder with the bit pattern of 3.0f in tensor w changed.
  std::string flipped() {
    const std::string source = copy_of("2.11.0/minimal/ckpt", "flipped");
    std::string bytes = file_bytes(source + "/__0_0.distcp");
    const std::size_t at = bytes.find(std::string("\0\0\x40\x40", 4));
    EXPECT_NE(at, std::string::npos);
    bytes[at + 1] = 1;
    write_file(source + "/__0_0.distcp", bytes);
    return source;
  }
  std::string torn() {
    const std::string source = copy_of(kFolder, "torn");
    std::filesystem::remove(source + "/__1_0.distcp");
    return source;
  }
};

TEST_F(CliTest, stats_tells_what_a_scheme_would_cost) {
  const std::string model = path("model");
  const std::string made = path("made");
  ASSERT_EQ(run_cli({"export", golden_path("2.15.0/fsdp2/ckpt"), model}).status, 0);
  write_file(model + "/config.json", R"({"model_type": "own", "dtype": "float32"})");
  ASSERT_EQ(run_cli({"export", model, made, "--quantize", "int8"}).status, 0);
  const auto tensors = [&](const std::vector<std::string>& words) {
    const CliResult result = run_cli(words);
    EXPECT_EQ(result.status, 0) << result.err;
    return formats::to_text(*formats::parse_json(result.out).find("tensors"));
  };
  const std::string planned =
      tensors({"stats", model, "--quantization", "--quantize", "int8", "--json"});
  EXPECT_EQ(planned, tensors({"stats", made, "--quantization", "--original", model, "--json"}));
  EXPECT_NE(planned,
            tensors({"stats", model, "--quantization", "--quantize", "fp8-tensor", "--json"}));
  EXPECT_EQ(run_cli({"stats", model, "--quantization"}).status, 2);
  EXPECT_EQ(run_cli({"stats", model, "--quantize", "int8"}).status, 2);
  EXPECT_EQ(run_cli({"stats", model, "--quantization", "--original", made}).status, 2);
}

TEST_F(ReadingVerbs, stats_does_not_depend_on_threads) {
  const CliResult one = run_cli({"stats", golden_path(kFolder), "--json", "--threads", "1"});
  EXPECT_EQ(one.status, 0);
  EXPECT_EQ(run_cli({"stats", golden_path(kFolder), "--json", "--threads", "7"}).out, one.out);
  EXPECT_EQ(*formats::parse_json(one.out).find("schema")->as_string(), "fsdp-ckpt/stats/1");
}

TEST_F(ReadingVerbs, a_gate_trips_by_name_and_passes_where_nothing_is_wrong) {
  const CliResult tripped = run_cli({"stats", golden_path(kOdd), "-q", "--fail-on", "nan,inf"});
  EXPECT_EQ(tripped.status, 1);
  EXPECT_THAT(tripped.out, HasSubstr("gate[nan]: 'nan': 1 NaN\ngate[inf]: 'nan': 2 infinite\n"));
  const CliResult passed = run_cli({"stats", golden_path(kFolder), "-q", "--fail-on", "nan"});
  EXPECT_EQ(passed.status, 0);
  EXPECT_EQ(passed.out, "");
  EXPECT_EQ(run_cli({"stats", golden_path(kOdd), "--exclude", "nan", "--fail-on", "nan"}).status,
            0);
  const CliResult json =
      run_cli({"stats", golden_path(kOdd), "--fail-on", "nan", "--fail-on", "zero", "--json"});
  EXPECT_EQ(json.status, 1);
  EXPECT_FALSE(*formats::parse_json(json.out).find("passed")->as_bool());
}

TEST_F(ReadingVerbs, a_gate_never_passes_over_what_was_not_read) {
  const CliResult sparse =
      run_cli({"stats", golden_path("2.11.0/sparse_pt/full.pt"), "--fail-on", "nan"});
  EXPECT_EQ(sparse.status, 2);
  EXPECT_THAT(sparse.err, HasSubstr("holds elements that stats does not read"));
  EXPECT_EQ(run_cli({"stats", golden_path(kFolder), "--fail-on", "NaN"}).status, 2);
  EXPECT_EQ(run_cli({"stats", golden_path(kFolder), "-k", "nothing", "--fail-on", "nan"}).status,
            2);
}

TEST_F(ReadingVerbs, damage_is_status_2_for_all_three) {
  const std::string bad = flipped();
  const std::vector<std::vector<std::string>> crc_commands = {
      {"stats", bad},
      {"diff", bad, bad},
      {"diff", golden_path("2.11.0/minimal/ckpt"), bad, "--atol", "1e9"},
      {"extract", bad, "w"},
      {"extract", bad, "w", path("w.npy")},
      {"extract", bad, "w[0]", path("w.pt")}};
  for (const auto& command : crc_commands) {
    const CliResult result = run_cli(command);
    EXPECT_EQ(result.status, 2) << command[0];
    EXPECT_THAT(result.err, HasSubstr("error[ZIP_CRC]")) << command[0];
    EXPECT_EQ(result.out, "") << command[0];
  }
  EXPECT_THAT(names(), testing::UnorderedElementsAre("flipped"));
  EXPECT_EQ(run_cli({"extract", bad, "w[0,0]", "--no-verify"}).status, 0);
  const std::string half = torn();
  for (const auto& command : std::vector<std::vector<std::string>>{
           {"stats", half}, {"diff", golden_path(kFolder), half}, {"diff", half, half}}) {
    const CliResult result = run_cli(command);
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.err, HasSubstr("error[SHARD_MISSING]"));
  }
}

TEST_F(ReadingVerbs, diff_sees_formats_and_world_sizes_through) {
  const std::string full = path("full.pt");
  ASSERT_EQ(run_cli({"consolidate", golden_path(kFolder), full, "-q"}).status, 0);
  const CliResult same = run_cli({"diff", golden_path(kFolder), full});
  EXPECT_EQ(same.status, 0);
  EXPECT_THAT(same.out, HasSubstr("are the same: 80 tensors, 13 values"));
  EXPECT_EQ(run_cli({"diff", golden_path(kFolder), full, "-q"}).out, "");
}

TEST_F(ReadingVerbs, diff_names_keys_dtypes_and_prefixes) {
  const std::string model = path("m.safetensors");
  ASSERT_EQ(run_cli({"consolidate", golden_path(kFolder), model, "-q", "--drop-values", "-k",
                     "app.model.**", "--strip-prefix", "app.model", "--dtype", "bfloat16"})
                .status,
            0);
  const std::vector<std::string> base = {"diff",      golden_path(kFolder), model,
                                         "--exclude", "app.optim.**",       "--ignore-values"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), base.begin(), base.end());
    return run_cli(more);
  };
  const CliResult apart = with({});
  EXPECT_EQ(apart.status, 1);
  EXPECT_THAT(apart.err, HasSubstr("--strip-prefix-a app.model. would make keys match"));
  const CliResult dtypes = with({"--strip-prefix-a", "app.model"});
  EXPECT_EQ(dtypes.status, 1);
  EXPECT_THAT(dtypes.out, HasSubstr("float32 in A, bfloat16 in B"));
  EXPECT_THAT(dtypes.out, HasSubstr("differ: 22 dtypes"));
  EXPECT_EQ(with({"--strip-prefix-a", "app.model", "--close"}).status, 0);
  const CliResult tight = with({"--strip-prefix-a", "app.model", "--close", "--rtol", "1e-9",
                                "--atol", "0", "--sort", "absolute", "--json"});
  EXPECT_EQ(tight.status, 1);
  const formats::Json json = formats::parse_json(tight.out);
  EXPECT_EQ(*json.find("schema")->as_string(), "fsdp-ckpt/diff/1");
  const formats::Json& worst = json.find("differences")->as_array()->at(0);
  EXPECT_EQ(*worst.find("key")->as_string(), "emb.weight");
}

TEST_F(ReadingVerbs, diff_refuses_two_keys_that_become_one) {
  const CliResult result =
      run_cli({"diff", golden_path("2.11.0/nested_pt/full.pt"),
               golden_path("2.11.0/nested_pt/full.pt"), "--strip-prefix-a", "a.b"});
  EXPECT_NE(result.status, 0);
}

TEST_F(ReadingVerbs, diff_of_quantized_and_sparse_tensors_compares_their_bytes) {
  for (const char* name : {"2.11.0/quantized_pt/full.pt", "2.11.0/sparse_pt/full.pt"}) {
    const CliResult result = run_cli({"diff", golden_path(name), golden_path(name)});
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("are the same"));
  }
}

TEST_F(ReadingVerbs, extract_prints_slices_values_and_what_is_near) {
  const std::string source = golden_path(kFolder);
  EXPECT_EQ(run_cli({"extract", source, "app.model.steps_seen"}).out, "[7, 8, 9]\n");
  EXPECT_EQ(run_cli({"extract", source, "app.model.steps_seen[-2:]"}).out, "[8, 9]\n");
  EXPECT_EQ(run_cli({"extract", source, "app.model.steps_seen[1]"}).out, "8\n");
  EXPECT_EQ(run_cli({"extract", source, "app.optim.param_groups.0.betas"}).out, "(0.9, 0.999)\n");
  const CliResult wrong = run_cli({"extract", source, "app.model.step_seen"});
  EXPECT_EQ(wrong.status, 2);
  EXPECT_THAT(wrong.err, HasSubstr("error[NOT_FOUND]"));
  EXPECT_THAT(wrong.err, HasSubstr("did you mean 'app.model.steps_seen'?"));
  const CliResult range = run_cli({"extract", source, "app.model.steps_seen[3]"});
  EXPECT_EQ(range.status, 2);
  EXPECT_THAT(range.err, HasSubstr("'3' is out of range: dimension 0 has size 3"));
  EXPECT_EQ(run_cli({"extract", source, "app.optim.param_groups.0.betas[0]"}).status, 2);
}

TEST_F(ReadingVerbs, extract_writes_whole_files_or_none) {
  const std::string source = golden_path(kFolder);
  const std::string key = "app.model.emb.weight[0:4, ::2]";
  const CliResult dry = run_cli({"extract", source, key, path("a.npy"), "--dry-run", "--json"});
  EXPECT_EQ(dry.status, 0);
  EXPECT_TRUE(names().empty());
  const CliResult real = run_cli({"extract", source, key, path("a.npy"), "--json"});
  EXPECT_EQ(real.status, 0);
  EXPECT_EQ(*formats::parse_json(dry.out).find("bytes")->as_int(),
            static_cast<std::int64_t>(file_bytes(path("a.npy")).size()));
  EXPECT_THAT(file_bytes(path("a.npy")),
              HasSubstr("{'descr': '<f4', 'fortran_order': False, 'shape': (4, 13), }"));
  const CliResult again = run_cli({"extract", source, key, path("a.npy")});
  EXPECT_EQ(again.status, 2);
  EXPECT_THAT(again.err, HasSubstr("error[EXISTS]"));
  EXPECT_EQ(run_cli({"extract", source, key, path("a.npy"), "--force"}).status, 0);
  const CliResult bf16 = run_cli({"extract", source, key, path("b.npy"), "--dtype", "bfloat16"});
  EXPECT_EQ(bf16.status, 2);
  EXPECT_THAT(bf16.err, HasSubstr("numpy has no bfloat16; cast with --dtype float32"));
  EXPECT_EQ(run_cli({"extract", source, key, path("b.txt")}).status, 2);
  EXPECT_EQ(
      run_cli({"extract", source, "app.model.steps_seen", path("b.npy"), "--dtype", "float32"})
          .status,
      2);
  EXPECT_EQ(run_cli({"extract", source, key, source + "/b.npy"}).status, 2);
  EXPECT_THAT(names(), testing::UnorderedElementsAre("a.npy"));
}

TEST_F(ReadingVerbs, extract_needs_only_the_tensor_asked_for_to_be_sound) {
  const std::string source = torn();
  EXPECT_EQ(run_cli({"extract", source, "app.model.steps_seen"}).out, "[7, 8, 9]\n");
  const CliResult gone = run_cli({"extract", source, "app.model.emb.weight"});
  EXPECT_EQ(gone.status, 2);
  EXPECT_THAT(gone.err, HasSubstr("error[SHARD_MISSING]"));
}

TEST_F(CliTest, extract_to_standard_output_is_the_file_it_would_write) {
  const std::string source = golden_path("2.15.0/fsdp2/ckpt");
  const std::string key = "app.model.emb.weight[0:3, ::2]";
  ASSERT_EQ(run_cli({"extract", source, key, path("a.npy")}).status, 0);
  const CliResult piped = run_cli({"extract", source, key, "-"});
  EXPECT_EQ(piped.status, 0);
  EXPECT_EQ(piped.out, file_bytes(path("a.npy")));
  EXPECT_EQ(piped.err, "");
  EXPECT_EQ(run_cli({"extract", source, key, "-", "--to", "npy"}).out, piped.out);
  EXPECT_THAT(run_cli({"extract", source, key, "-", "--to", "pt"}).err,
              HasSubstr("only npy can go to standard output"));
  EXPECT_EQ(run_cli({"extract", source, key, "-", "--json"}).status, 2);
  EXPECT_EQ(names().size(), 1U);
}

TEST_F(CliTest, extract_of_a_glob_writes_a_folder) {
  const std::string source = golden_path("2.15.0/fsdp2/ckpt");
  const std::string glob = "app.model.blocks.*.up.*";
  EXPECT_THAT(run_cli({"extract", source, glob}).err, HasSubstr("needs OUT, a folder"));
  EXPECT_THAT(run_cli({"extract", source, glob, path("d"), "-n"}).out, HasSubstr(": 6 files, "));
  EXPECT_FALSE(std::filesystem::exists(path("d")));
  ASSERT_EQ(run_cli({"extract", source, glob, path("d")}).status, 0);
  ASSERT_EQ(run_cli({"extract", source, "app.model.blocks.1.up.bias", path("a.npy")}).status, 0);
  EXPECT_EQ(file_bytes(path("d/app.model.blocks.1.up.bias.npy")), file_bytes(path("a.npy")));
  const formats::Json json = formats::parse_json(
      run_cli({"extract", source, glob, path("e"), "--to", "pt", "--exclude", "**.bias", "--json"})
          .out);
  ASSERT_EQ(json.find("files")->as_array()->size(), 3U);
  EXPECT_EQ(*json.find("files")->as_array()->at(0).find("name")->as_string(),
            "app.model.blocks.0.up.weight.pt");
  EXPECT_EQ(run_cli({"inspect", path("e/app.model.blocks.0.up.weight.pt")}).status, 0);
  EXPECT_THAT(run_cli({"extract", source, "no.*", path("f")}).err,
              HasSubstr("no tensor matches 'no.*'"));
  EXPECT_THAT(run_cli({"extract", source, glob, path("d")}).err, HasSubstr("error[EXISTS]"));
}

TEST_F(CliTest, extract_replaces_a_folder_of_arrays_and_no_other) {
  const std::string source = golden_path("2.15.0/fsdp2/ckpt");
  const std::string glob = "app.model.blocks.*.up.*";
  ASSERT_EQ(run_cli({"extract", source, glob, path("d")}).status, 0);
  const CliResult again = run_cli({"extract", source, "**.bias", path("d"), "--force"});
  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_FALSE(std::filesystem::exists(path("d/app.model.blocks.1.up.weight.npy")));
  write_file(path("d/notes.txt"), "mine");
  const CliResult refused = run_cli({"extract", source, glob, path("d"), "--force"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("holds 'notes.txt'"));
  std::filesystem::remove(path("d/notes.txt"));
  write_file(path("d/model.safetensors"), "mine");
  EXPECT_EQ(run_cli({"extract", source, glob, path("d"), "--force"}).status, 2);
}

// Each array is a file of its own: there may be more of them than a process may have open.
TEST_F(CliTest, extract_of_a_glob_needs_few_open_files) {
  constexpr int kTensors = 300;
  std::string header = "{";
  for (int i = 0; i < kTensors; ++i) {
    header += (i == 0 ? "\"t" : ",\"t") + std::to_string(i) +
              R"(":{"dtype":"U8","shape":[1],"data_offsets":[)" + std::to_string(i) + "," +
              std::to_string(i + 1) + "]}";
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string length(8, '\0');
  for (int i = 0; i < 8; ++i)
    length[static_cast<std::size_t>(i)] = static_cast<char>(header.size() >> (8 * i));
  write_file(path("many.safetensors"), length + header + std::string(kTensors, 'x'));
  const rlimit few{64, 64};
  // In a child: the limit that the tool raises for itself is the hard one.
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool limited = ::setrlimit(RLIMIT_NOFILE, &few) == 0;
    ::_exit(limited ? run_cli({"extract", path("many.safetensors"), "**", path("out")}).status
                    : 99);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path("out")))
    files += entry.is_regular_file() ? 1 : 0;
  EXPECT_EQ(files, static_cast<std::size_t>(kTensors));
}

TEST_F(CliTest, names_of_extracted_files_stay_in_their_folder) {
  std::string header = R"({"../up":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                       R"("a/b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  write_file(path("odd.safetensors"), std::string(1, static_cast<char>(header.size())) +
                                          std::string(7, '\0') + header + "xy");
  const CliResult result = run_cli({"extract", path("odd.safetensors"), "**", path("out")});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_TRUE(std::filesystem::exists(path("out/%2E.%2Fup.npy")));
  EXPECT_TRUE(std::filesystem::exists(path("out/a%2Fb.npy")));
  EXPECT_EQ(names().size(), 2U);
}

}  // namespace
}  // namespace fsdp::cli
