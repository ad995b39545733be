// SPDX-License-Identifier: Apache-2.0
// Reports and refusals; tests/interop/check_salvage.py compares what is written with PyTorch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/json.h"
#include "tests/tools/run_cli.h"

namespace fsdp::cli {
namespace {

using formats::Json;
using testing::HasSubstr;

constexpr const char* kFolder = "2.15.0/fsdp2/ckpt";

class SalvageTest : public CliTest {
 protected:
  static std::int64_t number(const Json& report, const char* member) {
    return *report.find(member)->as_int();
  }
  static void flip(const std::string& file, std::size_t at) {
    std::string bytes = file_bytes(file);
    bytes.at(at) = static_cast<char>(bytes.at(at) ^ 1);
    write_file(file, bytes);
  }
};

TEST_F(SalvageTest, a_lost_file_leaves_rows_and_the_rest_comes_from_another) {
  const std::string folder = copy_of(kFolder, "folder");
  std::filesystem::remove(folder + "/__1_0.distcp");
  const CliResult part = run_cli({"salvage", folder, path("part")});
  EXPECT_EQ(part.status, 1) << part.err;
  EXPECT_THAT(part.out, HasSubstr("app.model.emb.weight: rows 19:38 of [38, 26] lost: "
                                  "__1_0.distcp is missing"));
  EXPECT_EQ(run_cli({"verify", path("part")}).status, 0);
  const CliResult whole =
      run_cli({"salvage", folder, path("whole"), "--from", golden_path(kFolder), "--json"});
  EXPECT_EQ(whole.status, 0) << whole.err;
  const Json report = formats::parse_json(whole.out);
  EXPECT_EQ(number(report, "taken"), number(report, "partly") + number(report, "lost"));
  EXPECT_EQ(run_cli({"diff", path("whole"), golden_path(kFolder)}).status, 0);
  const Json beside = formats::parse_json(file_bytes(path("whole.salvage.json")));
  EXPECT_EQ(to_text(*beside.find("keys")), to_text(*report.find("keys")));
}

TEST_F(SalvageTest, neither_the_source_nor_an_output_is_overwritten) {
  const std::string folder = copy_of(kFolder, "folder");
  EXPECT_THAT(run_cli({"salvage", folder, folder, "--force"}).err, HasSubstr("SAME_PATH"));
  EXPECT_THAT(run_cli({"salvage", folder, path("o"), "--from", path("o")}).err,
              HasSubstr("SAME_PATH"));
  ASSERT_EQ(run_cli({"salvage", folder, path("o")}).status, 0);
  EXPECT_THAT(run_cli({"salvage", folder, path("o")}).err, HasSubstr("error[EXISTS]"));
  std::filesystem::remove_all(path("o"));
  EXPECT_THAT(run_cli({"salvage", folder, path("o")}).err, HasSubstr("o.salvage.json"));
  EXPECT_FALSE(std::filesystem::exists(path("o")));
  EXPECT_EQ(run_cli({"salvage", folder, path("o"), "--force", "--dry-run"}).status, 0);
  EXPECT_FALSE(std::filesystem::exists(path("o")));
}

TEST_F(SalvageTest, a_cut_safetensors_file_keeps_what_lies_before_the_cut) {
  ASSERT_EQ(
      run_cli({"consolidate", golden_path(kFolder), path("m.safetensors"), "-k", "app.model.**"})
          .status,
      0);
  const std::string bytes = file_bytes(path("m.safetensors"));
  write_file(path("cut.safetensors"), bytes.substr(0, bytes.size() - 10));
  const CliResult cut =
      run_cli({"salvage", path("cut.safetensors"), path("o.safetensors"), "--json"});
  EXPECT_EQ(cut.status, 1) << cut.err;
  const Json report = formats::parse_json(cut.out);
  EXPECT_EQ(number(report, "lost"), 1);
  EXPECT_EQ(number(report, "whole"), 0);
  EXPECT_GT(number(report, "unchecked"), 10);
  EXPECT_EQ(run_cli({"verify", path("o.safetensors")}).status, 0);
}

TEST_F(SalvageTest, a_seal_is_a_checksum_and_tells_another_file) {
  const std::string folder = copy_of(kFolder, "folder");
  const std::string other = copy_of(kFolder, "other");
  ASSERT_EQ(run_cli({"seal", folder}).status, 0);
  ASSERT_EQ(run_cli({"salvage", folder, path("o")}).status, 0);
  flip(folder + "/.metadata", 400);
  EXPECT_THAT(run_cli({"salvage", folder, path("p")}).out, HasSubstr("metadata: those of"));
}

TEST_F(SalvageTest, what_does_not_fit_is_named) {
  const std::string folder = copy_of(kFolder, "run/folder");
  const std::string other = copy_of("2.11.0/minimal/ckpt", "run/minimal");
  std::filesystem::remove(folder + "/.metadata");
  const CliResult refused = run_cli({"salvage", folder, path("o")});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("error[NO_METADATA]"));
  EXPECT_THAT(refused.err, HasSubstr("minimal/.metadata does not fit: "));
  EXPECT_FALSE(std::filesystem::exists(path("o")));
}

}  // namespace
}  // namespace fsdp::cli
