// SPDX-License-Identifier: Apache-2.0
// Tests which inputs consolidate refuses, and that it leaves nothing behind. tests/interop compares
// its results with PyTorch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/json.h"
#include "formats/bytes/outputs/atomic_file.h"
#include "formats/front/open.h"
#include "tests/tools/run_cli.h"

namespace fsdp::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(CliTest, consolidating_a_full_file_again_gives_the_same_bytes) {
  ASSERT_EQ(run_cli({"consolidate", golden_path("2.15.0/fsdp2/ckpt"), path("a.pt")}).status, 0);
  ASSERT_EQ(run_cli({"consolidate", path("a.pt"), path("b.pt")}).status, 0);
  EXPECT_EQ(file_bytes(path("a.pt")), file_bytes(path("b.pt")));
}

TEST_F(CliTest, threads_and_memory_do_not_change_a_byte) {
  ASSERT_EQ(
      run_cli({"consolidate", golden_path("2.15.0/fsdp1/ckpt"), path("a.pt"), "--threads", "1"})
          .status,
      0);
  ASSERT_EQ(run_cli({"consolidate", golden_path("2.15.0/fsdp1/ckpt"), path("b.pt"), "--threads",
                     "5", "--max-memory", "16MiB"})
                .status,
            0);
  EXPECT_EQ(file_bytes(path("a.pt")), file_bytes(path("b.pt")));
}

TEST_F(CliTest, a_dry_run_predicts_the_bytes_and_writes_nothing) {
  struct Case {
    std::vector<std::string> args;
    std::string out;
  };
  const std::string source = golden_path("2.15.0/fsdp2/ckpt");
  for (const Case& c : std::vector<Case>{
           {{"consolidate", source, path("a.pt")}, "a.pt"},
           {{"consolidate", source, path("a.safetensors"), "-k", "app.model.**"}, "a.safetensors"},
           {{"consolidate", source, path("hf"), "--max-shard-size", "16KiB", "-k", "app.model.**"},
            "hf"}}) {
    std::vector<std::string> dry = c.args;
    dry.insert(dry.end(), {"--dry-run", "--json"});
    const CliResult predicted = run_cli(dry);
    ASSERT_EQ(predicted.status, 0) << predicted.err;
    ASSERT_TRUE(names().empty());
    ASSERT_EQ(run_cli(c.args).status, 0);
    const formats::Json json = formats::parse_json(predicted.out);
    EXPECT_EQ(*json.find("schema")->as_string(), "fsdp-ckpt/consolidate/1");
    std::uint64_t bytes = 0;
    for (const formats::Json& file : *json.find("files")->as_array()) {
      std::filesystem::path written = path(c.out);
      if (std::filesystem::is_directory(written)) written /= *file.find("name")->as_string();
      EXPECT_EQ(static_cast<std::int64_t>(std::filesystem::file_size(written)),
                *file.find("bytes")->as_int());
      bytes += std::filesystem::file_size(written);
    }
    EXPECT_EQ(*json.find("bytes")->as_int(), static_cast<std::int64_t>(bytes));
    std::filesystem::remove_all(path(c.out));
  }
}

TEST_F(CliTest, an_existing_output_stays_unless_forced) {
  write_file(path("a.pt"), "old");
  const CliResult refused =
      run_cli({"consolidate", golden_path("2.11.0/minimal/ckpt"), path("a.pt")});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("error[EXISTS]"));
  EXPECT_THAT(refused.err, HasSubstr("--force"));
  EXPECT_EQ(file_bytes(path("a.pt")), "old");
  EXPECT_EQ(
      run_cli({"consolidate", golden_path("2.11.0/minimal/ckpt"), path("a.pt"), "--force"}).status,
      0);
  EXPECT_EQ(run_cli({"verify", path("a.pt")}).status, 0);
  EXPECT_THAT(names(), ElementsAre("a.pt"));
}

TEST_F(CliTest, an_output_inside_or_instead_of_the_input_is_refused) {
  const std::string source = copy_of("2.11.0/minimal/ckpt", "c");
  std::filesystem::create_directory_symlink(source, path("link"));
  for (const std::string& out : {source + "/out.pt", path("link/out.pt"), source + "/../c/x.pt"}) {
    const CliResult result = run_cli({"consolidate", source, out});
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.err, HasSubstr("error[SAME_PATH]")) << out;
  }
  const std::string file = copy_of("2.11.0/zip_pt/full.pt", "full.pt");
  const std::string before = file_bytes(file);
  EXPECT_THAT(run_cli({"consolidate", file, file, "--force"}).err, HasSubstr("error[SAME_PATH]"));
  std::filesystem::create_symlink(file, path("alias.pt"));
  EXPECT_THAT(run_cli({"consolidate", path("alias.pt"), file, "--force"}).err,
              HasSubstr("error[SAME_PATH]"));
  EXPECT_EQ(file_bytes(file), before);
}

TEST_F(CliTest, values_have_no_place_in_safetensors_unless_dropped) {
  const std::string source = golden_path("2.11.0/minimal/ckpt");
  const CliResult refused = run_cli({"consolidate", source, path("a.safetensors")});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("error[UNSUPPORTED]"));
  EXPECT_THAT(refused.err, HasSubstr("--drop-values"));
  EXPECT_TRUE(names().empty());
  const CliResult dropped =
      run_cli({"consolidate", source, path("a.safetensors"), "--drop-values"});
  EXPECT_EQ(dropped.status, 0);
  EXPECT_THAT(dropped.out, HasSubstr("left out: 1 value"));
}

TEST_F(CliTest, a_safetensors_file_of_nothing_is_refused) {
  const CliResult result = run_cli({"consolidate", golden_path("2.11.0/minimal/ckpt"),
                                    path("a.safetensors"), "-k", "step", "--drop-values"});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr("holds no tensor"));
}

TEST_F(CliTest, dtypes_that_safetensors_lacks_are_refused_by_name) {
  const CliResult result = run_cli({"consolidate", golden_path("2.11.0/dtypes/ckpt"),
                                    path("a.safetensors"), "-k", "complex128"});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr("error[UNSUPPORTED]"));
  EXPECT_THAT(result.err, HasSubstr("complex128"));
}

TEST_F(CliTest, a_flipped_bit_stops_it_and_leaves_nothing) {
  const std::string source = copy_of("2.15.0/fsdp2/ckpt", "c");
  std::string bytes = file_bytes(source + "/__1_0.distcp");
  // Into the payload of the largest tensor of rank 1's file.
  const auto checkpoint = formats::open_checkpoint(source);
  std::uint64_t at = 0;
  std::string key;
  for (const auto& tensor : checkpoint->index().tensors) {
    for (std::size_t c = 0; c < tensor.chunks.size(); ++c) {
      const auto data = checkpoint->chunk(tensor, c);
      if (data.file.ends_with("__1_0.distcp") && data.storage_bytes > 1000) {
        at = data.file_offset + 500;
        key = tensor.key;
      }
    }
  }
  ASSERT_NE(at, 0U);
  bytes[at] = static_cast<char>(bytes[at] ^ 4);
  write_file(source + "/__1_0.distcp", bytes);
  for (const char* out : {"a.pt", "a.safetensors"}) {
    const CliResult result = run_cli({"consolidate", source, path(out), "--drop-values"});
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.err, HasSubstr("error[ZIP_CRC]"));
    EXPECT_THAT(result.err, HasSubstr("__1_0.distcp"));
    EXPECT_THAT(result.err, HasSubstr("'" + key + "'"));
    EXPECT_THAT(names(), ElementsAre("c"));
  }
  // Only the tensor is unwanted: nothing of it is read.
  EXPECT_EQ(run_cli({"consolidate", source, path("b.pt"), "--exclude", key}).status, 0);
}

TEST_F(CliTest, a_missing_file_is_named_before_anything_is_written) {
  const std::string source = copy_of("2.15.0/fsdp2/ckpt", "c");
  std::filesystem::remove(source + "/__1_0.distcp");
  const CliResult result = run_cli({"consolidate", source, path("a.pt")});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr("error[SHARD_MISSING]"));
  EXPECT_THAT(result.err, HasSubstr("__1_0.distcp"));
  EXPECT_THAT(names(), ElementsAre("c"));
}

TEST_F(CliTest, a_selection_that_matches_nothing_is_an_error) {
  const CliResult result =
      run_cli({"consolidate", golden_path("2.11.0/minimal/ckpt"), path("a.pt"), "-k", "nope.*"});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr("no key matches"));
}

TEST_F(CliTest, tied_tensors_are_written_once_and_named) {
  const CliResult result = run_cli({"consolidate", golden_path("2.11.0/zip_pt/full.pt"),
                                    path("a.safetensors"), "--drop-values"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("tied: 'tied' is 'base'"));
  const std::string tensors = run_cli({"inspect", path("a.safetensors"), "--json"}).out;
  EXPECT_THAT(tensors, testing::Not(HasSubstr("\"key\":\"tied\"")));
}

TEST_F(CliTest, two_writers_of_one_output_do_not_mix) {
  const auto first = formats::new_file(path("a.pt"), {});
  const CliResult second =
      run_cli({"consolidate", golden_path("2.11.0/minimal/ckpt"), path("a.pt")});
  EXPECT_EQ(second.status, 2);
  EXPECT_THAT(second.err, HasSubstr("error[BUSY]"));
}

TEST_F(CliTest, a_folder_of_something_else_is_not_replaced) {
  std::filesystem::create_directory(path("hf"));
  write_file(path("hf/thesis.tex"), "years of work");
  const CliResult result = run_cli({"consolidate", golden_path("2.11.0/minimal/ckpt"), path("hf"),
                                    "--max-shard-size", "1MB", "-k", "w", "--force"});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr("error[EXISTS]"));
  EXPECT_EQ(file_bytes(path("hf/thesis.tex")), "years of work");
}

TEST_F(CliTest, missing_folders_above_the_output_are_made_and_not_left_behind) {
  const std::string source = copy_of("2.11.0/minimal/ckpt", "c");
  const CliResult plan = run_cli({"consolidate", source, path("new/deep/a.pt"), "-n"});
  EXPECT_EQ(plan.status, 0) << plan.err;
  EXPECT_FALSE(std::filesystem::exists(path("new")));
  EXPECT_EQ(run_cli({"consolidate", source, path("new/deep/a.pt")}).status, 0);
  EXPECT_EQ(run_cli({"reshard", source, path("sharded/two"), "-w", "2"}).status, 0);
  EXPECT_EQ(run_cli({"verify", path("sharded/two")}).status, 0);
  EXPECT_EQ(run_cli({"extract", source, "w", path("arrays/w.npy")}).status, 0);
  EXPECT_EQ(run_cli({"inspect", source, "--html", path("pages/c.html")}).status, 0);
  std::string bytes = file_bytes(source + "/__0_0.distcp");
  bytes[bytes.find("archive/data/0") + 70] ^= 1;
  write_file(source + "/__0_0.distcp", bytes);
  for (const std::string& out : {path("lost/a.pt"), path("lost/deep/a.safetensors")}) {
    EXPECT_EQ(run_cli({"consolidate", source, out, "--drop-values"}).status, 2) << out;
    EXPECT_FALSE(std::filesystem::exists(path("lost")));
  }
}

TEST_F(CliTest, a_dry_run_says_where_the_space_is_not_enough) {
  // One tensor of 8 TiB, all of it a hole.
  const std::uint64_t bytes = std::uint64_t{8} << 40U;
  std::string header = R"({"w":{"dtype":"U8","shape":[)" + std::to_string(bytes) +
                       R"(],"data_offsets":[0,)" + std::to_string(bytes) + "]}}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  write_file(path("big.safetensors"),
             std::string(1, static_cast<char>(header.size())) + std::string(7, '\0') + header);
  std::error_code error;
  std::filesystem::resize_file(path("big.safetensors"), 8 + header.size() + bytes, error);
  if (error || std::filesystem::space(folder()).available > bytes)
    GTEST_SKIP() << "no file of 8 TiB here, or room for two";
  for (const char* form : {"-q", "--json"}) {
    const CliResult result =
        run_cli({"consolidate", path("big.safetensors"), path("out.pt"), "-n", form});
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.err, testing::HasSubstr("error[NO_SPACE]: " + path("out.pt") +
                                               ": needs 8.0 TiB, only "));
    EXPECT_EQ(result.out.find("would write") != std::string::npos, std::string(form) == "-q");
  }
  EXPECT_EQ(names().size(), 1U);
}

}  // namespace
}  // namespace fsdp::cli
