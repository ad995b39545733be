// SPDX-License-Identifier: Apache-2.0
// Errors and findings end with the next command; it is run where it mends something.
#include "tools/base/remedy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tools/run_cli.h"

namespace fsdp::cli {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

const char* const kFolder = "2.15.0/fsdp2/ckpt";

class RemedyTest : public CliTest {
 protected:
  static void flip(const std::string& file, std::size_t at) {
    std::string bytes = file_bytes(file);
    bytes.at(at) = static_cast<char>(bytes.at(at) ^ 1);
    write_file(file, bytes);
  }
};

TEST_F(RemedyTest, each_remedy_has_its_words) {
  struct Row {
    ErrorCode code;
    Hint hint;
    const char* words;
  };
  const Row rows[] = {
      {ErrorCode::kExists, {Remedy::kReplace}, "--force replaces it"},
      {ErrorCode::kGlobal, {Remedy::kAllowGlobal, "a.b"}, "--allow-global a.b accepts it"},
      {ErrorCode::kUnsupported, {Remedy::kExclude, "k"}, "leave it out with --exclude 'k'"},
      {ErrorCode::kShardMissing,
       {Remedy::kTakeWhole},
       "fsdp-ckpt salvage PATH OUT takes what is whole"},
      {ErrorCode::kZipCrc, take_from_hint("a.b"),
       "fsdp-ckpt salvage PATH OUT --from OTHER takes what is not whole from another checkpoint"},
      {ErrorCode::kNoMetadata,
       {Remedy::kEarlier},
       "fsdp-ckpt salvage PATH OUT makes it again from another step, fsdp-ckpt latest on the run's "
       "folder prints the newest sound checkpoint"},
      {ErrorCode::kUnsealed, {Remedy::kSeal}, "fsdp-ckpt seal writes one"},
      {ErrorCode::kShape,
       {Remedy::kResizeTables, "32000"},
       "fsdp-ckpt resize-vocab --size 32000 gives them that many"},
  };
  for (const Row& row : rows) {
    const std::string text = std::string("x; ") + row.words;
    EXPECT_EQ(message_of(Error(row.code, "x", row.hint)), text);
    EXPECT_EQ(message_of(formats::Finding{.code = row.code,
                                          .message = "x",
                                          .file = {},
                                          .key = {},
                                          .bytes = {},
                                          .hint = row.hint}),
              text);
  }
  EXPECT_EQ(message_of(Error(ErrorCode::kZipCrc, "x", take_from_hint("a.*"))), "x");
  EXPECT_EQ(message_of(Error(ErrorCode::kZipCrc, "x", take_from_hint(""))), "x");
  EXPECT_EQ(message_of(Error(ErrorCode::kRekeyUnused, "x")), "x; fsdp-ckpt inspect lists the keys");
  EXPECT_EQ(message_of(Error(ErrorCode::kRekeyUnused, "x; did you mean y?")), "x; did you mean y?");
}

TEST_F(RemedyTest, a_missing_file_leaves_whole_tensors_to_be_taken) {
  const std::string folder = copy_of(kFolder, "folder");
  std::filesystem::remove(folder + "/__1_0.distcp");
  const std::string words =
      "__1_0.distcp: file is missing; 92 items lie in it, the first is 'app.model.emb.weight'; 1 "
      "of 80 tensors is whole; fsdp-ckpt salvage PATH OUT takes what is whole\n";
  EXPECT_THAT(run_cli({"verify", folder}).out, HasSubstr(words));
  EXPECT_THAT(run_cli({"consolidate", folder, path("all.pt")}).err, EndsWith(words));
  const CliResult taken = run_cli({"salvage", folder, path("one.pt")});
  EXPECT_EQ(taken.status, 1) << taken.err;
  EXPECT_EQ(
      run_cli({"diff", path("one.pt"), golden_path(kFolder), "-k", "app.model.steps_seen"}).status,
      0);
  // Nothing is left to be taken.
  std::filesystem::remove(folder + "/__0_0.distcp");
  const CliResult none = run_cli({"verify", folder});
  EXPECT_THAT(none.out, HasSubstr("; 0 of 80 tensors are whole\n"));
  EXPECT_THAT(none.out, Not(HasSubstr("takes what is whole")));
}

TEST_F(RemedyTest, a_damaged_tensor_is_taken_from_another_checkpoint) {
  const std::string whole = golden_path(kFolder);
  const std::string key = "app.model.blocks.0.up.weight";
  const std::string words =
      "; fsdp-ckpt salvage PATH OUT --from OTHER takes what is not whole from another checkpoint\n";
  const std::string folder = copy_of(kFolder, "folder");
  flip(folder + "/__1_0.distcp", 25'709);
  ASSERT_EQ(run_cli({"consolidate", whole, path("file.pt")}).status, 0);
  const std::string file = path("file.pt");
  const std::string bytes = file_bytes(file);
  const CliResult placed = run_cli({"extract", file, key, "--json"});
  ASSERT_EQ(placed.status, 0);
  const std::string first = file_bytes(whole + "/__1_0.distcp").substr(25'709, 64);
  ASSERT_NE(bytes.find(first), std::string::npos);
  flip(file, bytes.find(first));
  for (const std::string& damaged : {folder, file}) {
    const CliResult found = run_cli({"verify", damaged});
    EXPECT_THAT(found.out, HasSubstr("damage[ZIP_CRC]: "));
    EXPECT_THAT(found.out, HasSubstr(words));
    EXPECT_THAT(run_cli({"consolidate", damaged, path("o.pt")}).err,
                EndsWith(damaged == file ? "; fsdp-ckpt verify names its keys\n" : words));
    const std::string out = damaged == file ? path("mended.pt") : path("mended");
    const CliResult mended = run_cli({"salvage", damaged, out, "--from", whole});
    EXPECT_EQ(mended.status, 0) << mended.err;
    EXPECT_EQ(run_cli({"verify", out}).status, 0);
    EXPECT_EQ(run_cli({"diff", out, whole}).status, 0);
  }
}

TEST_F(RemedyTest, a_folder_without_metadata_leads_to_the_run) {
  std::filesystem::create_directory(path("run"));
  const std::string whole = copy_of(kFolder, "run/step-1");
  const std::string folder = copy_of(kFolder, "run/step-2");
  std::filesystem::remove(folder + "/.metadata");
  const std::string words =
      "; fsdp-ckpt salvage PATH OUT makes it again from another step, fsdp-ckpt latest on the "
      "run's "
      "folder prints the newest sound checkpoint\n";
  EXPECT_THAT(run_cli({"verify", folder}).out, HasSubstr("or is still running" + words));
  EXPECT_THAT(run_cli({"consolidate", folder, path("o.pt")}).err, EndsWith(words));
  EXPECT_EQ(run_cli({"salvage", folder, path("again")}).status, 0);
  EXPECT_EQ(run_cli({"diff", path("again"), whole}).status, 0);
  EXPECT_EQ(run_cli({"latest", path("run")}).out, whole + "\n");
}

TEST_F(RemedyTest, a_folder_without_a_seal_is_sealed) {
  const std::string folder = copy_of(kFolder, "folder");
  const CliResult found = run_cli({"verify", folder, "--require-seal"});
  EXPECT_THAT(found.out, HasSubstr("damage[UNSEALED]: has no seal; fsdp-ckpt seal writes one\n"));
  EXPECT_EQ(run_cli({"seal", folder}).status, 0);
  EXPECT_EQ(run_cli({"verify", folder, "--require-seal"}).status, 0);
}

TEST_F(RemedyTest, a_name_that_is_not_there_leads_to_one_that_is) {
  const std::string source = golden_path(kFolder);
  const auto error_of = [&](std::vector<std::string> words) {
    const CliResult result = run_cli(words);
    EXPECT_EQ(result.status, 2) << words[0];
    return result.err;
  };
  for (const char* verb : {"inspect", "verify", "stats"}) {
    EXPECT_THAT(
        error_of({verb, source, "-k", "app.*"}),
        EndsWith("no key matches 'app.*'; * does not cross dots; did you mean 'app.**'?\n"));
    EXPECT_THAT(error_of({verb, source, "-k", "model.**"}),
                EndsWith("no key matches 'model.**'; did you mean 'app.model.**'?\n"));
    EXPECT_THAT(error_of({verb, source, "-k", "x.app.model.*"}),
                EndsWith("; did you mean 'app.model.*'?\n"));
    EXPECT_THAT(error_of({verb, source, "-k", "zzz.**"}),
                EndsWith("; fsdp-ckpt inspect lists them\n"));
  }
  EXPECT_THAT(error_of({"extract", source, "emb.weight"}),
              EndsWith("no key 'emb.weight'; did you mean 'app.model.emb.weight'?\n"));
  EXPECT_THAT(error_of({"extract", source, "module.app.model.emb.weight"}),
              EndsWith("; did you mean 'app.model.emb.weight'?\n"));
  EXPECT_THAT(error_of({"set", source, path("o"), "param_groups.*.lr=0"}),
              HasSubstr("; did you mean 'app.optim.param_groups.*.lr'?"));
  EXPECT_THAT(error_of({"set", source, path("o"), "--drop", "emb.*"}),
              HasSubstr("; did you mean '"));
  EXPECT_TRUE(names().empty());
}

}  // namespace
}  // namespace fsdp::cli
