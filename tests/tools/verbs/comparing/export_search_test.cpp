// SPDX-License-Identifier: Apache-2.0
// diff of a checkpoint and its export; tests/interop/check_export_diff.py has those of PyTorch,
// transformers and torchtitan.
#include "tools/verbs/comparing/export_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/json.h"
#include "tests/tools/run_cli.h"
#include "tests/tools/tiny_safetensors.h"

namespace fsdp::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

class ExportSearchTest : public CliTest {
 protected:
  static TinySafetensors model(const std::string& front, float last = 1) {
    TinySafetensors out;
    out.fill(front + "emb.weight", {3, 2}, 4);
    out.fill(front + "layers.0.w", {2, 2}, 2);
    out.add(front + "layers.1.w", {2, 2}, {1, 2, 3, last});
    return out;
  }
  formats::Json diff(const std::vector<std::string>& more, int status) {
    std::vector<std::string> words = {"diff", path("a.safetensors"), path("b.safetensors"),
                                      "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const CliResult result = run_cli(words);
    EXPECT_EQ(result.status, status) << result.out << result.err;
    return formats::parse_json(result.out);
  }
  static std::string text(const formats::Json& json, const char* name) {
    return *json.find(name)->as_string();
  }
};

TEST_F(ExportSearchTest, a_front_of_all_names_is_found) {
  model("module.net.").write(path("a.safetensors"));
  model("").write(path("b.safetensors"));
  const formats::Json same = diff({}, 0);
  EXPECT_EQ(text(*same.find("through"), "origin"), "a");
  EXPECT_EQ(*same.find("tensors")->as_int(), 3);
  model("", 7).write(path("b.safetensors"));
  const formats::Json found = diff({}, 1);
  ASSERT_EQ(found.find("differences")->as_array()->size(), 1U);
  EXPECT_EQ(text(found.find("differences")->as_array()->at(0), "key"), "layers.1.w");
  // On request names stay as they are.
  EXPECT_EQ(diff({"--map", "none"}, 1).find("differences")->as_array()->size(), 6U);
}

TEST_F(ExportSearchTest, every_name_has_to_fit) {
  model("net.").write(path("a.safetensors"));
  TinySafetensors more = model("");
  more.fill("layers.2.w", {2, 2}, 2);
  more.write(path("b.safetensors"));
  const formats::Json found = diff({}, 1);
  EXPECT_TRUE(found.find("through")->is_null());
  EXPECT_THAT(text(found, "no_way"), HasSubstr("'layers.2.w' to B alone"));
  EXPECT_EQ(found.find("differences")->as_array()->size(), 7U);
}

TEST_F(ExportSearchTest, names_that_are_mostly_shared_start_no_search) {
  model("").write(path("a.safetensors"));
  TinySafetensors other;
  other.fill("emb.weight", {3, 2}, 4);
  other.fill("layers.0.w", {2, 2}, 2);
  other.fill("layers.one.w", {2, 2}, 2);
  other.write(path("b.safetensors"));
  const formats::Json found = diff({}, 1);
  EXPECT_TRUE(found.find("through")->is_null());
  EXPECT_TRUE(found.find("no_way")->is_null());
}

TEST_F(ExportSearchTest, a_map_is_undone_and_both_names_are_told) {
  write_file(path("r.toml"),
             "[[rule]]\nfrom = \"layers.{i:int}.w\"\nto = \"stack\"\nover = \"i\"\n"
             "do = [\"stack\"]\n[rename]\n\"emb.weight\" = \"table\"\n");
  model("net.").write(path("a.safetensors"));
  TinySafetensors made;
  made.fill("table", {3, 2}, 4);
  made.add("stack", {2, 2, 2}, {2, 2, 2, 2, 1, 2, 3, 9});
  made.write(path("b.safetensors"));
  const formats::Json found = diff({"--map", path("r.toml")}, 1);
  EXPECT_EQ(text(*found.find("through"), "keys_of"), "a");
  ASSERT_EQ(found.find("differences")->as_array()->size(), 1U);
  const formats::Json& only = found.find("differences")->as_array()->at(0);
  EXPECT_EQ(text(only, "key"), "layers.1.w");
  EXPECT_EQ(*only.find("names")->as_array()->at(0).as_string(), "stack");
  EXPECT_EQ(*only.find("first")->as_array()->at(1).as_int(), 1);
  const CliResult people =
      run_cli({"diff", path("a.safetensors"), path("b.safetensors"), "--map", path("r.toml")});
  EXPECT_THAT(people.out, HasSubstr("is 'stack' in B"));
  EXPECT_THAT(people.out, HasSubstr("through: the models A and B; A without 'net.'; map "));
  // A map that takes neither side is an error, and so are selected keys.
  write_file(path("wrong.toml"), "[rename]\n\"x\" = \"y\"\n");
  const std::vector<std::string> base = {"diff", path("a.safetensors"), path("b.safetensors"),
                                         "--map"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), base.begin(), base.end());
    return run_cli(more);
  };
  const CliResult wrong = with({path("wrong.toml")});
  EXPECT_EQ(wrong.status, 2);
  EXPECT_THAT(wrong.err, HasSubstr("error[KEY]: " + path("wrong.toml")));
  EXPECT_THAT(with({path("r.toml"), "-k", "table"}).err, HasSubstr("error[USAGE]"));
  EXPECT_THAT(with({path("missing.toml")}).err, HasSubstr("error[NOT_FOUND]"));
}

TEST_F(ExportSearchTest, a_folder_with_its_configuration_is_an_export_under_the_same_names) {
  const std::string folder = path("hf");
  ASSERT_EQ(run_cli({"consolidate", golden_path("2.15.0/fsdp2/ckpt"), path("m.safetensors"), "-q",
                     "-k", "app.model.**", "--strip-prefix", "app.model", "--drop-values"})
                .status,
            0);
  write_file(path("config.json"), R"({"model_type": "own"})");
  ASSERT_EQ(run_cli({"export", path("m.safetensors"), folder, "--config", path("config.json"),
                     "--dtype", "bf16", "-q"})
                .status,
            0);
  std::filesystem::remove(path("config.json"));
  for (const std::string& source : {path("m.safetensors"), golden_path("2.15.0/fsdp2/ckpt")}) {
    const CliResult result = run_cli({"diff", folder, source});
    EXPECT_EQ(result.status, 0) << result.out << result.err;
    EXPECT_THAT(result.out, HasSubstr("rounded: 22 tensors of B, float32 to bfloat16\n"));
    EXPECT_THAT(result.out, HasSubstr("bit by bit after rounding"));
  }
  EXPECT_THAT(run_cli({"diff", golden_path("2.15.0/fsdp2/ckpt"), folder}).out,
              HasSubstr("not compared: 70 entries of A beside the model\n"));
  // Without the configuration dtypes are what they are.
  std::filesystem::remove(folder + "/config.json");
  const CliResult plain = run_cli({"diff", folder, path("m.safetensors")});
  EXPECT_EQ(plain.status, 1);
  EXPECT_THAT(plain.out, HasSubstr("22 dtypes"));
}

// A page has the names of both sides, and nothing of them is markup.
TEST_F(ExportSearchTest, pages_of_diff_and_stats_hold_what_json_prints) {
  const std::string hostile = "</script><b>";
  model(hostile + ".", 5).write(path("a.safetensors"));
  model("").write(path("b.safetensors"));
  const CliResult page =
      run_cli({"diff", path("a.safetensors"), path("b.safetensors"), "--html", path("d.html")});
  EXPECT_EQ(page.status, 1);
  EXPECT_THAT(page.out, HasSubstr("d.html: a page of 1 row\n"));
  const std::string text = file_bytes(path("d.html"));
  EXPECT_THAT(text, HasSubstr("\"fsdp-ckpt/diff/1\""));
  EXPECT_THAT(text, Not(HasSubstr(hostile)));
  EXPECT_EQ(
      run_cli({"diff", path("a.safetensors"), path("b.safetensors"), "--html", path("d.html")})
          .status,
      2);
  const CliResult json = run_cli(
      {"stats", path("a.safetensors"), "--html", path("s.html"), "--json", "--fail-on", "nan"});
  EXPECT_EQ(json.status, 0);
  EXPECT_THAT(json.out, HasSubstr("\"fsdp-ckpt/stats/1\""));
  EXPECT_THAT(file_bytes(path("s.html")), HasSubstr("\"fsdp-ckpt/stats/1\""));
  EXPECT_EQ(run_cli({"stats", path("b.safetensors"), "--html", path("s.html"), "--force"}).status,
            0);
  // Nothing is left of a page whose checkpoint cannot be read.
  EXPECT_EQ(run_cli({"stats", path("none"), "--html", path("n.html")}).status, 2);
  EXPECT_THAT(names(), Not(testing::Contains(HasSubstr("n.html"))));
}

}  // namespace
}  // namespace fsdp::cli
