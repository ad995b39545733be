// SPDX-License-Identifier: Apache-2.0
// Tests which inputs shard and reshard refuse, and that they leave nothing behind. tests/interop
// checks that their chunks are FSDP's and that PyTorch loads them.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/json.h"
#include "tests/support/dcp_folder.h"
#include "tests/tools/run_cli.h"

namespace fsdp::cli {
namespace {

namespace fs = std::filesystem;

using testing::HasSubstr;

TEST_F(CliTest, a_world_size_out_of_range_is_refused_with_the_range) {
  for (const std::string verb : {"shard", "reshard"}) {
    for (const std::string size :
         {"0", "-1", "1000000000", "18446744073709551616", "4x", "", "65537"}) {
      const CliResult done =
          run_cli({verb, golden_path("2.11.0/minimal/ckpt"), path("out"), "--world-size=" + size});
      EXPECT_EQ(done.status, 2) << size;
      EXPECT_THAT(done.err, HasSubstr("--world-size")) << size;
      if (!size.empty()) {
        EXPECT_THAT(done.err, HasSubstr("from 1 to 65536")) << size;
      }
    }
    EXPECT_EQ(run_cli({verb, golden_path("2.11.0/minimal/ckpt"), path("out")}).status, 2);
  }
  EXPECT_TRUE(names().empty());
}

TEST_F(CliTest, a_dry_run_of_reshard_names_the_files_and_bytes_that_are_then_written) {
  const std::string source = golden_path("2.15.0/fsdp2/ckpt");
  const CliResult dry =
      run_cli({"reshard", source, path("out"), "--world-size", "3", "--dry-run", "--json"});
  ASSERT_EQ(dry.status, 0) << dry.err;
  ASSERT_TRUE(names().empty());
  ASSERT_EQ(run_cli({"reshard", source, path("out"), "--world-size", "3"}).status, 0);
  const formats::Json json = formats::parse_json(dry.out);
  std::size_t files = 0;
  for (const formats::Json& file : *json.find("files")->as_array()) {
    ++files;
    EXPECT_EQ(static_cast<std::int64_t>(
                  fs::file_size(fs::path(path("out")) / *file.find("name")->as_string())),
              *file.find("bytes")->as_int());
  }
  EXPECT_EQ(files, 4U);
}

TEST_F(CliTest, resharding_there_and_back_gives_the_same_bytes) {
  const std::string source = golden_path("2.15.0/fsdp1/ckpt");
  ASSERT_EQ(run_cli({"reshard", source, path("a"), "--world-size", "2"}).status, 0);
  ASSERT_EQ(run_cli({"reshard", path("a"), path("b"), "--world-size", "7"}).status, 0);
  ASSERT_EQ(run_cli({"reshard", path("b"), path("c"), "--world-size", "2", "--threads", "1",
                     "--max-memory", "16MiB"})
                .status,
            0);
  for (const std::string name : {"__0_0.distcp", "__1_0.distcp", ".metadata"})
    EXPECT_EQ(file_bytes(path("a/" + name)), file_bytes(path("c/" + name))) << name;
}

TEST_F(CliTest, reshard_refuses_destinations_inside_around_and_at_the_source) {
  const std::string source = copy_of("2.11.0/shards/ckpt", "ckpt");
  for (const std::string& out : {source, source + "/inside", source + "/../ckpt/x"}) {
    const CliResult done = run_cli({"reshard", source, out, "--world-size", "2", "--force"});
    EXPECT_EQ(done.status, 2) << out;
    EXPECT_THAT(done.err, HasSubstr("error[SAME_PATH]")) << out;
  }
  const CliResult around =
      run_cli({"reshard", source, folder().native(), "--world-size", "2", "--force"});
  EXPECT_THAT(around.err, HasSubstr("error[SAME_PATH]"));
  EXPECT_EQ(run_cli({"verify", source}).status, 0);
}

TEST_F(CliTest, reshard_refuses_a_source_that_lacks_a_file_before_it_writes) {
  const std::string source = copy_of("2.11.0/shards/ckpt", "ckpt");
  for (const auto& entry : fs::directory_iterator(source)) {
    if (entry.path().extension() == ".distcp" && entry.file_size() > 0) {
      fs::remove(entry.path());
      break;
    }
  }
  const CliResult done = run_cli({"reshard", source, path("out"), "--world-size", "2"});
  EXPECT_EQ(done.status, 2);
  EXPECT_THAT(done.err, HasSubstr("error[SHARD_MISSING]"));
  EXPECT_FALSE(fs::exists(path("out")));
}

TEST_F(CliTest, reshard_selects_keys_and_refuses_what_matches_nothing) {
  const std::string source = golden_path("2.15.0/fsdp2/ckpt");
  ASSERT_EQ(
      run_cli({"reshard", source, path("out"), "--world-size", "2", "-k", "app.model.**"}).status,
      0);
  const CliResult listed = run_cli({"inspect", path("out"), "--json"});
  EXPECT_THAT(listed.out, HasSubstr("app.model."));
  EXPECT_THAT(listed.out, testing::Not(HasSubstr("optim")));
  const CliResult none =
      run_cli({"reshard", source, path("none"), "--world-size", "2", "-k", "nothing"});
  EXPECT_THAT(none.err, HasSubstr("error[NOT_FOUND]"));
  EXPECT_FALSE(fs::exists(path("none")));
}

TEST_F(CliTest, reshard_refuses_values_that_would_run_code_unless_they_are_allowed) {
  test::DcpFolder made;
  made.metadata.tensors.push_back({"w", {4}, {made.chunk({0}, {4})}});
  made.add_value("config", test::global("my.module", "Config") + ")R");
  made.write();
  const std::string source = made.folder.path().native();
  const CliResult refused = run_cli({"reshard", source, path("out"), "--world-size", "2"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("error[GLOBAL]"));
  EXPECT_THAT(refused.err, HasSubstr("'my.module.Config'"));
  EXPECT_TRUE(names().empty());
  const CliResult allowed = run_cli(
      {"reshard", source, path("out"), "--world-size", "2", "--allow-global", "my.module.Config"});
  EXPECT_EQ(allowed.status, 0) << allowed.err;
}

}  // namespace
}  // namespace fsdp::cli
