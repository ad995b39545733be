// SPDX-License-Identifier: Apache-2.0
// rename and rekey on the command line: shared files, refusals and reports. tests/interop compares
// their results with PyTorch.
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/json.h"
#include "formats/front/open.h"
#include "tests/tools/run_cli.h"

namespace fsdp::cli {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

const char* const kFolder = "2.15.0/fsdp2/ckpt";

std::vector<std::string> keys_in(const std::string& path) {
  const auto checkpoint = formats::open_checkpoint(path);
  std::vector<std::string> keys;
  for (const auto& tensor : checkpoint->index().tensors) keys.push_back(tensor.key);
  for (const auto& value : checkpoint->index().values) keys.push_back(value.key);
  return keys;
}

std::uint64_t inode(const std::filesystem::path& path) {
  struct stat info {};
  EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
  return info.st_ino;
}

class RenameTest : public CliTest {
 protected:
  // Runs a command that has to succeed.
  std::string done(const std::vector<std::string>& args) const {
    const CliResult result = run_cli(args);
    EXPECT_EQ(result.status, 0) << result.err;
    return result.out;
  }
  // Runs a command that has to fail and to leave nothing.
  std::string refused(const std::vector<std::string>& args) const {
    const auto before = names();
    const CliResult result = run_cli(args);
    EXPECT_EQ(result.status, 2) << result.out;
    EXPECT_EQ(names(), before);
    return result.err;
  }
};

TEST_F(RenameTest, a_folder_shares_its_data_files_and_nothing_else) {
  const std::string source = copy_of(kFolder, "source");
  const std::string metadata = file_bytes(source + "/.metadata");
  EXPECT_THAT(done({"rename", source, path("out"), "--rename", "blocks=layers"}),
              HasSubstr("of it shared with the source"));
  EXPECT_EQ(inode(source + "/__0_0.distcp"), inode(path("out/__0_0.distcp")));
  EXPECT_NE(inode(source + "/.metadata"), inode(path("out/.metadata")));
  EXPECT_EQ(file_bytes(source + "/.metadata"), metadata);
  EXPECT_THAT(keys_in(path("out")), Contains("app.model.layers.0.up.weight"));
  EXPECT_THAT(keys_in(path("out")), Contains("app.optim.state.layers.0.up.weight.exp_avg"));
  // New files are written under temporary names: the next run leaves the source unchanged too.
  done({"rename", source, path("out"), "--rename", "blocks=other", "--force"});
  EXPECT_THAT(keys_in(path("out")), Contains("app.model.other.0.up.weight"));
  EXPECT_EQ(run_cli({"verify", source, "--strict"}).status, 0);
}

TEST_F(RenameTest, copies_on_request_are_files_of_their_own) {
  const std::string source = copy_of(kFolder, "source");
  EXPECT_THAT(done({"rename", source, path("out"), "--rename", "blocks=layers", "--copy"}),
              HasSubstr("all data matched its CRC-32"));
  EXPECT_NE(inode(source + "/__0_0.distcp"), inode(path("out/__0_0.distcp")));
  EXPECT_EQ(file_bytes(source + "/__0_0.distcp"), file_bytes(path("out/__0_0.distcp")));
}

TEST_F(RenameTest, a_data_file_of_which_nothing_is_needed_stays_out) {
  const std::string source = golden_path("2.11.0/many_files/ckpt");
  const std::vector<std::string> keys = keys_in(source);
  ASSERT_GT(keys.size(), 1U);
  const formats::Json json =
      formats::parse_json(done({"rename", source, path("out"), "--drop", "/" + keys[0], "--json"}));
  EXPECT_THAT(keys_in(path("out")), Not(Contains(keys[0])));
  EXPECT_GT(*json.find("unneeded_files")->as_int(), 0);
}

TEST_F(RenameTest, other_formats_are_copied) {
  done({"consolidate", golden_path(kFolder), path("full.pt")});
  done({"rename", path("full.pt"), path("out.pt"), "--rename", "app=all"});
  EXPECT_THAT(keys_in(path("out.pt")), Contains("all.model.blocks.0.up.weight"));
  done({"rename", golden_path("2.15.0/hf_safetensors/ckpt"), path("hf"), "--rename", "/=x."});
}

TEST_F(RenameTest, a_map_file_holds_many_rules) {
  test::write_file(path("map.txt"), "# layers\nblocks.0 => blocks.1\nblocks.1\tblocks.0\n");
  done({"rename", golden_path(kFolder), path("out"), "--rename-file", path("map.txt")});
  test::write_file(path("map.json"), R"({"blocks.0": "x", "blocks.0": "y"})");
  EXPECT_THAT(
      refused({"rename", golden_path(kFolder), path("o"), "--rename-file", path("map.json")}),
      HasSubstr("error[JSON]: " + path("map.json")));
  EXPECT_THAT(
      refused({"rename", golden_path(kFolder), path("o"), "--rename-file", path("none.json")}),
      HasSubstr("error[NOT_FOUND]"));
}

TEST_F(RenameTest, what_cannot_be_meant_is_refused) {
  const std::string source = golden_path(kFolder);
  EXPECT_THAT(refused({"rename", source, path("o")}), HasSubstr("nothing to do"));
  EXPECT_THAT(refused({"rename", source, path("o"), "--rename", "a"}), HasSubstr("FROM=TO"));
  EXPECT_THAT(refused({"rename", source, path("o"), "--drop", "[a"}), HasSubstr("error[USAGE]"));
  EXPECT_THAT(refused({"rename", source, path("o"), "--rename", "none=x"}),
              HasSubstr("error[REKEY_UNUSED]"));
  EXPECT_THAT(refused({"rename", source, path("o"), "--rename", "blocks.0=blocks.1"}),
              HasSubstr("error[REKEY_COLLISION]"));
  EXPECT_THAT(refused({"rename", source, source, "--rename", "blocks=x"}),
              HasSubstr("error[SAME_PATH]"));
  EXPECT_THAT(refused({"rename", source, source + "/in", "--rename", "blocks=x"}),
              HasSubstr("error[SAME_PATH]"));
  done({"rename", source, path("out"), "--rename", "blocks=x"});
  EXPECT_THAT(refused({"rename", source, path("out"), "--rename", "blocks=x"}),
              HasSubstr("error[EXISTS]"));
}

TEST_F(RenameTest, items_that_carry_their_names_stay_what_they_are) {
  EXPECT_THAT(refused({"rename", golden_path("2.11.0/safetensors_items/ckpt"), path("o"),
                       "--rename", "/=x."}),
              HasSubstr("and contains the name"));
}

TEST_F(RenameTest, a_damaged_source_is_refused) {
  const std::string source = copy_of(kFolder, "source");
  std::filesystem::resize_file(source + "/__0_0.distcp", 2000);
  EXPECT_THAT(refused({"rename", source, path("o"), "--rename", "blocks=x"}),
              HasSubstr("error[EXTENT]"));
  std::filesystem::remove(source + "/__0_0.distcp");
  EXPECT_THAT(refused({"rename", source, path("o"), "--rename", "blocks=x"}),
              HasSubstr("error[SHARD_MISSING]"));
}

TEST_F(RenameTest, neighbours_come_along_and_strangers_are_named) {
  const std::string source = copy_of(kFolder, "source");
  test::write_file(source + "/config.json", "{}");
  test::write_file(source + "/notes.txt", "mine");
  std::filesystem::create_directory(source + "/logs");
  std::filesystem::create_symlink("/etc/hostname", source + "/link.json");
  EXPECT_THAT(
      done({"rename", source, path("out"), "--rename", "blocks=x"}),
      HasSubstr(
          "not copied, since it is not part of the checkpoint: 'link.json', 'logs', 'notes.txt'"));
  EXPECT_EQ(inode(source + "/config.json"), inode(path("out/config.json")));
}

TEST_F(RenameTest, ids_and_names_and_back) {
  const std::string source = golden_path(kFolder);
  done({"rekey", source, path("ids"), "--key-by", "id"});
  EXPECT_THAT(keys_in(path("ids")), Contains("app.optim.state.0.exp_avg"));
  EXPECT_THAT(refused({"rekey", path("ids"), path("o"), "--key-by", "name"}),
              HasSubstr("error[REKEY_AMBIGUOUS]"));
  // The order of the folder's own list.
  done({"consolidate", source, path("full.pt")});
  const formats::Json json = formats::parse_json(
      done({"inspect", source, "--json", "-k", "app.optim.param_groups.0.params"}));
  std::string names;
  for (const auto& name : *(*json.find("values")->as_array())[0].find("value")->as_array())
    names += *name.as_string() + "\n";
  test::write_file(path("names.txt"), names);
  done({"rekey", path("ids"), path("back"), "--key-by", "name", "--names", path("names.txt")});
  EXPECT_THAT(keys_in(path("back")), testing::UnorderedElementsAreArray(keys_in(source)));
  EXPECT_THAT(done({"rekey", source, path("same"), "--key-by", "name"}),
              HasSubstr("by name already"));
  EXPECT_THAT(done({"rekey", path("full.pt"), path("ids.pt"), "--key-by", "id"}),
              HasSubstr("by name -> by id"));
}

TEST_F(RenameTest, what_rekey_cannot_do_is_refused) {
  const std::string source = golden_path(kFolder);
  test::write_file(path("empty"), "\n");
  test::write_file(path("list.json"), R"(["a", 1])");
  EXPECT_THAT(refused({"rekey", source, path("o")}), HasSubstr("--key-by"));
  EXPECT_THAT(refused({"rekey", source, path("o"), "--key-by", "id", "--flatten"}),
              HasSubstr("error[USAGE]"));
  EXPECT_THAT(refused({"rekey", source, path("o"), "--key-by", "id", "--names", path("empty")}),
              HasSubstr("error[EMPTY]"));
  EXPECT_THAT(refused({"rekey", source, path("o"), "--key-by", "id", "--names", path("list.json")}),
              HasSubstr("error[JSON]"));
  EXPECT_THAT(refused({"rekey", source, path("o"), "--key-by", "id", "--names-from", source}),
              HasSubstr("error[REKEY_AMBIGUOUS]"));
  EXPECT_THAT(refused({"rekey", golden_path("2.11.0/minimal/ckpt"), path("o"), "--key-by", "id"}),
              HasSubstr("holds no optimizer state"));
  EXPECT_THAT(refused({"rekey", source, path("o"), "--key-by", "id", "--names-from",
                       golden_path("2.11.0/bare_tensor_pt/full.pt")}),
              HasSubstr("holds no model's state dict"));
}

// Lightning before 2.1 saved modules below this name; its modules have names without it.
TEST_F(RenameTest, a_file_for_lightning_has_the_names_of_its_modules) {
  const std::string source = golden_path("2.15.0/fsdp2/ckpt");
  const std::string wrapped = path("wrapped.pt");
  ASSERT_EQ(
      run_cli({"consolidate", source, path("full.pt"), "-k", "app.model.**", "-k", "app.optim.**"})
          .status,
      0);
  done({"rename", path("full.pt"), wrapped, "--rename", "=_forward_module."});
  EXPECT_THAT(run_cli({"inspect", wrapped}).out, HasSubstr("_forward_module"));
  const CliResult result = run_cli({"convert", wrapped, path("l.ckpt"), "--to", "lightning-ckpt"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("stripped: '_forward_module.'\n"));
  ASSERT_EQ(run_cli({"convert", path("full.pt"), path("n.ckpt"), "--to", "lightning-ckpt"}).status,
            0);
  const CliResult same = run_cli({"diff", path("l.ckpt"), path("n.ckpt")});
  EXPECT_EQ(same.status, 0) << same.out;
}

}  // namespace
}  // namespace fsdp::cli
