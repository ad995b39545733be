// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/contents/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"
#include "tests/tools/run_cli.h"

namespace fsdp::cli {
namespace {

using testing::HasSubstr;

formats::Json inspect_json(const std::string& golden, std::vector<std::string> more = {}) {
  std::vector<std::string> args = {"inspect", golden_path(golden), "--json"};
  args.insert(args.end(), more.begin(), more.end());
  const CliResult result = run_cli(args);
  EXPECT_EQ(result.status, 0) << result.err;
  return formats::parse_json(result.out);
}

// {"w": float32[2,3], "step": 7}, one process: the numbers are those that its maker chose.
TEST_F(CliTest, inspect_json_has_the_fields_of_the_contract) {
  const formats::Json json = inspect_json("2.11.0/minimal/ckpt");
  EXPECT_EQ(*json.find("schema")->as_string(), "fsdp-ckpt/inspect/1");
  EXPECT_EQ(*json.find("format")->as_string(), "dcp");
  EXPECT_EQ(*json.find("ranks")->as_int(), 1);
  ASSERT_EQ(json.find("tensors")->as_array()->size(), 1U);
  const formats::Json& tensor = json.find("tensors")->as_array()->at(0);
  EXPECT_EQ(*tensor.find("key")->as_string(), "w");
  EXPECT_EQ(*tensor.find("dtype")->as_string(), "float32");
  EXPECT_EQ(formats::to_text(*tensor.find("shape")), "[2,3]");
  EXPECT_EQ(*tensor.find("bytes")->as_int(), 24);
  const formats::Json& chunk = tensor.find("chunks")->as_array()->at(0);
  EXPECT_EQ(formats::to_text(*chunk.find("offset")), "[0,0]");
  EXPECT_EQ(*chunk.find("file")->as_string(), "__0_0.distcp");
  const formats::Json& value = json.find("values")->as_array()->at(0);
  EXPECT_EQ(*value.find("key")->as_string(), "step");
  EXPECT_EQ(*value.find("type")->as_string(), "int");
  EXPECT_EQ(*value.find("value")->as_int(), 7);
  EXPECT_EQ(*json.find("totals")->find("parameters")->as_int(), 6);
}

TEST_F(CliTest, inspect_reads_values_only_where_wanted) {
  const formats::Json json = inspect_json("2.11.0/minimal/ckpt", {"--values", "never"});
  EXPECT_FALSE(*json.find("values_read")->as_bool());
  EXPECT_EQ(json.find("values")->as_array()->at(0).find("value"), nullptr);
}

TEST_F(CliTest, inspect_shows_values_as_python_does) {
  const CliResult result = run_cli({"inspect", golden_path("2.15.0/odd_pt/full.pt")});
  ASSERT_EQ(result.status, 0);
  EXPECT_THAT(result.out, HasSubstr("1180591620717411303424"));
  EXPECT_THAT(result.out, HasSubstr("torch.Size((2, 3))"));
  EXPECT_THAT(result.out, HasSubstr("b'\\x00\\xffabc'"));
}

TEST_F(CliTest, inspect_selects_keys) {
  const formats::Json json =
      inspect_json("2.15.0/fsdp2/ckpt", {"-k", "app.model.**", "--exclude", "**.bias"});
  EXPECT_TRUE(json.find("values")->as_array()->empty());
  for (const formats::Json& tensor : *json.find("tensors")->as_array()) {
    EXPECT_THAT(*tensor.find("key")->as_string(), testing::StartsWith("app.model."));
    EXPECT_THAT(*tensor.find("key")->as_string(), testing::Not(testing::EndsWith(".bias")));
  }
}

TEST_F(CliTest, inspect_lists_files_and_chunks_on_request) {
  const CliResult result = run_cli({"inspect", golden_path("2.15.0/fsdp2/ckpt"), "--files",
                                    "--chunks", "-k", "app.model.emb.weight"});
  EXPECT_THAT(result.out, HasSubstr("rank 1"));
  EXPECT_THAT(result.out, HasSubstr("[0:19, 0:26]  __0_0.distcp at byte "));
  EXPECT_THAT(result.out, HasSubstr("[19:38, 0:26]  __1_0.distcp at byte "));
}

TEST_F(CliTest, inspect_of_a_folder_with_a_missing_file_still_shows_it) {
  const std::string source = copy_of("2.15.0/fsdp2/ckpt", "c");
  std::filesystem::remove(source + "/__1_0.distcp");
  const CliResult result = run_cli({"inspect", source, "--files", "--values", "never"});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.out, HasSubstr("missing"));
}

TEST_F(CliTest, terminal_codes_in_names_never_reach_the_terminal) {
  for (const char* golden : {"2.15.0/odd/ckpt", "2.15.0/odd_pt/full.pt", "2.11.0/nested/ckpt"}) {
    const std::string out = run_cli({"inspect", golden_path(golden), "--files", "--chunks"}).out;
    for (const char c : out) EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20);
  }
}

TEST_F(CliTest, inspect_shows_an_object_without_a_key_as_the_root) {
  const CliResult result = run_cli({"inspect", golden_path("2.11.0/bare_tensor_pt/full.pt")});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.out, HasSubstr("(root)  float32  [3]"));
  const CliResult unnamed =
      run_cli({"convert", golden_path("2.11.0/bare_tensor_pt/full.pt"), path("out.safetensors")});
  EXPECT_EQ(unnamed.status, 2);
  EXPECT_THAT(unnamed.err, HasSubstr("full.pt: is a single tensor without a name"));
  EXPECT_THAT(unnamed.err, HasSubstr("; write a .pt or .h5 file"));
}

TEST_F(CliTest, inspect_html_writes_a_page_once) {
  const std::string page = path("page.html");
  const CliResult first = run_cli({"inspect", golden_path("2.11.0/minimal/ckpt"), "--html", page});
  EXPECT_EQ(first.status, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("page.html: a page of 1 tensor\n"));
  const std::string text = file_bytes(page);
  EXPECT_THAT(text, testing::StartsWith("<!DOCTYPE html>"));
  EXPECT_THAT(text, HasSubstr("[\"w\",0,[2,3],24,1,[[0,0,24]]]"));
  EXPECT_THAT(text, HasSubstr("[\"step\",\"int\",\"7\"]"));

  const CliResult second = run_cli({"inspect", golden_path("2.15.0/fsdp2/ckpt"), "--html", page});
  EXPECT_EQ(second.status, 2);
  EXPECT_THAT(second.err, HasSubstr("error[EXISTS]"));
  EXPECT_EQ(file_bytes(page), text);

  const CliResult forced =
      run_cli({"inspect", golden_path("2.15.0/fsdp2/ckpt"), "--html", page, "--force"});
  EXPECT_EQ(forced.status, 0) << forced.err;
  EXPECT_THAT(forced.out, HasSubstr("a page of 80 tensors"));
  EXPECT_EQ(names().size(), 1U);
}

TEST_F(CliTest, inspect_html_is_reproducible_and_leaves_json_on_stdout) {
  const std::string source = golden_path("2.15.0/fsdp2/ckpt");
  const CliResult a = run_cli({"inspect", source, "--html", path("a.html"), "--json"});
  const CliResult b = run_cli({"inspect", source, "--html", path("b.html"), "-q"});
  EXPECT_EQ(file_bytes(path("a.html")), file_bytes(path("b.html")));
  EXPECT_EQ(*formats::parse_json(a.out).find("totals")->find("tensors")->as_int(), 80);
  EXPECT_EQ(b.out, "");
}

// PROTO 2, GLOBAL os system, a text, TUPLE1, REDUCE, STOP.
const std::string kPayload(
    "\x80\x02"
    "cos\nsystem\nX\x02\0\0\0id\x85R.",
    23);

TEST_F(CliTest, inspect_globals_lists_what_the_reader_refuses) {
  std::filesystem::create_directory(path("trap"));
  write_file(path("trap/.metadata"), kPayload);
  EXPECT_EQ(run_cli({"inspect", path("trap")}).status, 2);
  const CliResult result = run_cli({"inspect", path("trap"), "--globals", "--json"});
  EXPECT_EQ(result.status, 1);  // it is not metadata, so nothing further was examined
  const formats::Json json = formats::parse_json(result.out);
  EXPECT_FALSE(*json.find("complete")->as_bool());
  ASSERT_EQ(json.find("globals")->as_array()->size(), 1U);
  const formats::Json& global = json.find("globals")->as_array()->at(0);
  EXPECT_EQ(*global.find("name")->as_string(), "os.system");
  EXPECT_EQ(*global.find("status")->as_string(), "unknown");
  EXPECT_EQ(*global.find("file")->as_string(), ".metadata");
}

TEST_F(CliTest, inspect_globals_of_a_bare_pickle_succeeds_and_obeys_allow_global) {
  write_file(path("payload.pkl"), kPayload);
  const CliResult unknown = run_cli({"inspect", path("payload.pkl"), "--globals"});
  EXPECT_EQ(unknown.status, 0) << unknown.err;
  EXPECT_THAT(unknown.out, HasSubstr("unknown  os.system  1  payload.pkl"));
  const CliResult allowed =
      run_cli({"inspect", path("payload.pkl"), "--globals", "--allow-global", "os.system"});
  EXPECT_THAT(allowed.out, HasSubstr("allowed  os.system"));
}

TEST_F(CliTest, inspect_globals_names_what_came_before_a_pickle_broke_off) {
  // TUPLE1 becomes an invalid opcode.
  std::string broken = kPayload;
  broken[broken.size() - 3] = '\xFE';
  write_file(path("broken.pkl"), broken);
  const CliResult result = run_cli({"inspect", path("broken.pkl"), "--globals"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("warning[OPCODE]: broken.pkl"));
}

TEST_F(CliTest, inspect_globals_names_what_getattr_takes_from_a_class) {
  // getattr(torch.Size, "__subclasses__")
  const std::string name = "__subclasses__";
  std::string stream(
      "\x80\x02"
      "cbuiltins\ngetattr\nctorch\nSize\nX");
  stream += static_cast<char>(name.size());
  stream += std::string(3, '\0') + name + "\x86R.";
  write_file(path("fetch.pkl"), stream);
  const CliResult result = run_cli({"inspect", path("fetch.pkl"), "--globals"});
  EXPECT_THAT(result.out, HasSubstr("unknown  torch.Size.__subclasses__"));
  EXPECT_THAT(result.out, HasSubstr("known    builtins.getattr"));
}

TEST_F(CliTest, inspect_globals_of_what_is_no_checkpoint_is_an_error) {
  write_file(path("notes.txt"), "lr: 0.1\n");
  EXPECT_THAT(run_cli({"inspect", path("notes.txt"), "--globals"}).err,
              HasSubstr("UNKNOWN_FORMAT"));
  EXPECT_THAT(run_cli({"inspect", path("nowhere"), "--globals"}).err, HasSubstr("NOT_FOUND"));
}

TEST_F(CliTest,
       inspect_html_of_a_value_that_cannot_be_read_leaves_no_page_and_names_the_way_around) {
  const std::string source = copy_of("2.15.0/fsdp2/ckpt", "c");
  std::filesystem::remove(source + "/__1_0.distcp");
  for (const std::vector<std::string>& form :
       std::vector<std::vector<std::string>>{{"--html", path("page.html")}, {"--json"}, {}}) {
    std::vector<std::string> args = {"inspect", source};
    args.insert(args.end(), form.begin(), form.end());
    const CliResult result = run_cli(args);
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.err, HasSubstr("--values never shows the rest without values"));
  }
  EXPECT_FALSE(std::filesystem::exists(path("page.html")));
  const CliResult without =
      run_cli({"inspect", source, "--html", path("page.html"), "--values", "never"});
  EXPECT_EQ(without.status, 0) << without.err;
}

TEST_F(CliTest, inspect_html_inside_the_checkpoint_is_refused) {
  const std::string source = copy_of("2.11.0/minimal/ckpt", "c");
  const CliResult result = run_cli({"inspect", source, "--html", source + "/page.html"});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr("error[SAME_PATH]"));
  EXPECT_FALSE(std::filesystem::exists(source + "/page.html"));
}

TEST_F(CliTest, inspect_max_bytes_is_a_gate_over_all_files) {
  const std::string source = copy_of("2.11.0/minimal/ckpt", "c");  // one file of 2,838 bytes
  EXPECT_EQ(run_cli({"inspect", source, "--max-bytes", "2838"}).status, 0);
  for (const char* form : {"--json", "-q", "--depth=0"}) {
    const CliResult more = run_cli({"inspect", source, "--max-bytes", "2837", form});
    EXPECT_EQ(more.status, 1);
    EXPECT_THAT(more.err,
                HasSubstr("has 2,838 bytes of files, more than the 2,837 of --max-bytes"));
  }
  std::filesystem::remove(source + "/__0_0.distcp");
  const CliResult missing = run_cli({"inspect", source, "--max-bytes", "1GB", "--values", "never"});
  EXPECT_EQ(missing.status, 1);
  EXPECT_THAT(missing.err, HasSubstr("1 file missing, so the size is unknown"));
}

TEST_F(CliTest, inspect_of_metadata_alone_lists_what_was_saved) {
  std::filesystem::create_directory(path("m"));
  std::filesystem::copy_file(golden_path("2.15.0/fsdp2/ckpt") + "/.metadata", path("m/.metadata"));
  const CliResult result = run_cli({"inspect", path("m")});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("2 files (2 missing)"));
  EXPECT_THAT(result.out, HasSubstr("80 tensors"));
  EXPECT_THAT(result.err, HasSubstr("13 values not read: no data file is there"));
  const CliResult json = run_cli({"inspect", path("m"), "--json"});
  EXPECT_FALSE(*formats::parse_json(json.out).find("values_read")->as_bool());
  EXPECT_EQ(run_cli({"inspect", path("m"), "--html", path("m.html")}).status, 0);
  EXPECT_EQ(run_cli({"inspect", path("m"), "--values", "always"}).status, 2);
}

}  // namespace
}  // namespace fsdp::cli
