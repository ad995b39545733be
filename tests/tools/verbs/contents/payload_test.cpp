// SPDX-License-Identifier: Apache-2.0
// Verbs that write, over checkpoints that hide code: refused, and the old output stays.
#include <gmock/gmock.h>

#include "tests/support/dcp_folder.h"
#include "tests/tools/run_cli.h"

namespace fsdp::cli {
namespace {

namespace fs = std::filesystem;
using test::call;
using test::dict_of;
using test::global;
using test::integer;
using test::text;
using test::tuple_of;
using testing::HasSubstr;

struct Hidden {
  const char* name;
  std::string opcodes;  // of a value
  const char* told;     // the name that is unsafe
};

std::string tensor(const std::string& hooks, const std::string& storage = "0") {
  return call(global("torch._utils", "_rebuild_tensor_v2"),
              {test::storage(storage, 4), integer(0), test::numbers({4}), test::numbers({1}),
               "\x89", hooks});
}

std::vector<Hidden> hidden() {
  const std::string payload = call(global("os", "system"), {text("id")});
  const std::string ordered = call(global("collections", "OrderedDict"), {});
  const std::string number = dict_of({{text("n"), integer(1)}});
  const std::string path = call(global("pathlib", "PosixPath"), {text("a")});
  const auto member = [](const char* module, const char* cls, const char* name) {
    return call(global("builtins", "getattr"), {global(module, cls), text(name)});
  };
  return {
      {"a defaultdict's factory",
       call(global("collections", "defaultdict"), {payload}) + "(" + text("n") + integer(1) + "u",
       "os.system"},
      {"an OrderedDict's state",
       ordered + "(" + text("n") + integer(1) + "u" + dict_of({{text("x"), payload}}) + "b",
       "os.system"},
      {"a Counter's state",
       call(global("collections", "Counter"), {number}) + dict_of({{text("x"), payload}}) + "b",
       "os.system"},
      {"a tensor's hooks", tensor(ordered + integer(0) + payload + "s"), "os.system"},
      {"a tuple that is a key", dict_of({{tuple_of({integer(1), payload}), integer(1)}}),
       "os.system"},
      {"an enumeration's member that is a key",
       dict_of({{call(global("mine", "Color"), {integer(1)}), integer(1)}}), "mine.Color"},
      {"write_text",
       member("pathlib", "PosixPath", "write_text") + tuple_of({path, text("x")}) + "R",
       "pathlib.PosixPath.write_text"},
      {"unlink", member("pathlib", "PosixPath", "unlink") + tuple_of({path}) + "R",
       "pathlib.PosixPath.unlink"},
      {"ndarray.tofile", member("numpy", "ndarray", "tofile"), "numpy.ndarray.tofile"},
      {"UntypedStorage.from_file",
       member("torch", "UntypedStorage", "from_file") + tuple_of({text("f")}) + "R",
       "torch.UntypedStorage.from_file"},
      {"_rebuild_from_type_v2 of getattr",
       call(global("torch._tensor", "_rebuild_from_type_v2"),
            {global("builtins", "getattr"), global("torch", "Tensor"),
             tuple_of({global("pathlib", "PosixPath"), text("write_text")}), "N"}),
       "builtins.getattr"},
  };
}

class PayloadTest : public CliTest {
 protected:
  void expect_refused(const Hidden& hidden, const std::string& verb, const std::string& source,
                      const std::string& out, const std::vector<std::string>& more = {}) const {
    SCOPED_TRACE(std::string(hidden.name) + ": " + verb + " " + source);
    std::vector<std::string> args = {verb, source, path(out), "--force"};
    args.insert(args.end(), more.begin(), more.end());
    const CliResult result = run_cli(args);
    EXPECT_EQ(result.status, 2) << result.out;
    EXPECT_THAT(result.err, HasSubstr("error[GLOBAL]"));
    EXPECT_THAT(result.err, HasSubstr(hidden.told));
    const std::string old = fs::is_directory(path(out)) ? path(out) + "/old.json" : path(out);
    EXPECT_TRUE(fs::exists(old) && file_bytes(old) == "{}") << "the old output is gone";
  }

  void expect_all_refuse(const Hidden& hidden, const std::string& source) const {
    write_file(path("out.pt"), "{}");
    write_file(path("out.h5"), "{}");
    fs::create_directory(path("out"));
    write_file(path("out/old.json"), "{}");
    expect_refused(hidden, "consolidate", source, "out.pt");
    expect_refused(hidden, "convert", source, "out.h5");
    expect_refused(hidden, "reshard", source, "out", {"--world-size", "2"});
    expect_refused(hidden, "rename", source, fs::is_directory(source) ? "out" : "out.pt",
                   {"--rename", "w=x"});
    const CliResult verified = run_cli({"verify", source});
    EXPECT_EQ(verified.status, 1) << hidden.name;
    EXPECT_THAT(verified.out + verified.err, HasSubstr(hidden.told)) << hidden.name;
    EXPECT_THAT(run_cli({"inspect", source, "--globals"}).out,
                HasSubstr(std::string("unknown  ") + hidden.told))
        << hidden.name;
    fs::remove_all(path("out"));
  }
};

// Returns a torch.save file with nothing else.
test::TorchZip as_root(const Hidden& hidden) {
  test::TorchZip zip;
  zip.root = hidden.opcodes;
  if (std::string(hidden.name).find("hooks") != std::string::npos)
    zip.storages = {{"0", std::string(16, '\0')}};
  return zip;
}

TEST_F(PayloadTest, in_a_torch_save_file_is_neither_sound_nor_passed_on) {
  for (const Hidden& hidden : hidden()) {
    test::TorchZip zip;
    zip.root = dict_of({{text("w"), tensor(call(global("collections", "OrderedDict"), {}), "1")},
                        {text("value"), hidden.opcodes}});
    zip.storages = {{"1", std::string(16, '\0')}};
    if (std::string(hidden.name).find("hooks") != std::string::npos)
      zip.storages.emplace_back("0", std::string(16, '\0'));
    write_file(path("in.pt"), zip.bytes());
    expect_all_refuse(hidden, path("in.pt"));
  }
}

TEST_F(PayloadTest, as_the_root_of_a_torch_save_file_is_neither_sound_nor_passed_on) {
  for (const Hidden& hidden : hidden()) {
    write_file(path("in.pt"), as_root(hidden).bytes());
    write_file(path("out.pt"), "{}");
    expect_refused(hidden, "consolidate", path("in.pt"), "out.pt");
  }
}

TEST_F(PayloadTest, in_a_folder_is_neither_sound_nor_passed_on) {
  for (const Hidden& hidden : hidden()) {
    if (std::string(hidden.name).find("hooks") != std::string::npos) continue;  // needs a storage
    test::DcpFolder made;
    made.metadata.tensors.push_back({"w", {4}, {made.chunk({0}, {4})}});
    made.add_value("value", hidden.opcodes);
    made.write();
    expect_all_refuse(hidden, made.folder.path().native());
  }
}

TEST_F(PayloadTest, in_the_hooks_of_a_folders_tensor_is_neither_sound_nor_passed_on) {
  const std::string ordered = call(global("collections", "OrderedDict"), {});
  test::TorchZip zip;
  zip.root = tensor(ordered + integer(0) + global("os", "system") + "s");
  zip.storages = {{"0", std::string(16, '\0')}};
  test::DcpFolder made;
  made.metadata.tensors.push_back({"w", {4}, {{{0}, {4}, made.append(zip.bytes())}}});
  made.write();
  const std::string source = made.folder.path().native();
  EXPECT_EQ(run_cli({"verify", source}).status, 1);
  // The output holds only the elements, except for data shared with the source.
  EXPECT_EQ(run_cli({"consolidate", source, path("out.pt")}).status, 0);
  EXPECT_EQ(run_cli({"inspect", path("out.pt"), "--globals"}).out.find("os.system"),
            std::string::npos);
  EXPECT_THAT(run_cli({"rename", source, path("out"), "--rename", "w=x"}).err,
              HasSubstr("os.system"));
  EXPECT_FALSE(fs::exists(path("out")));
}

TEST_F(PayloadTest, beside_the_data_files_of_a_folder_is_not_passed_on) {
  test::DcpFolder made;
  made.metadata.tensors.push_back({"w", {4}, {made.chunk({0}, {4})}});
  made.write();
  write_file(made.folder / "extra.pkl", test::proto(2, call(global("os", "system"), {text("id")})));
  const std::string source = made.folder.path().native();
  const CliResult refused = run_cli({"rename", source, path("out"), "--rename", "w=x"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("extra.pkl"));
  EXPECT_THAT(refused.err, HasSubstr("os.system"));
  EXPECT_TRUE(names().empty());
  EXPECT_EQ(
      run_cli({"rename", source, path("out"), "--rename", "w=x", "--allow-global", "os.system"})
          .status,
      0);
}

TEST_F(PayloadTest, that_is_allowed_is_passed_on) {
  for (const Hidden& hidden : hidden()) {
    write_file(path("in.pt"), as_root(hidden).bytes());
    const CliResult result = run_cli(
        {"consolidate", path("in.pt"), path("out.pt"), "--force", "--allow-global", hidden.told});
    EXPECT_EQ(result.status, 0) << hidden.name << ": " << result.err;
  }
}

}  // namespace
}  // namespace fsdp::cli
