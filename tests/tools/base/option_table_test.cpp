// SPDX-License-Identifier: Apache-2.0
#include "tools/base/option_table.h"

#include <map>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tools/run_cli.h"
#include "tools/command/verb_record.h"

namespace fsdp::cli {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::string long_name(std::string_view names) {
  return std::string(names.substr(names.find("--")));
}

TEST(OptionTable, a_name_has_one_meaning) {
  std::map<std::string, OptionMeaning> meanings;
  std::set<std::string> names;
  std::string before;
  for (const OptionMeaning& meaning : option_table()) {
    const std::string name = long_name(meaning.names);
    EXPECT_LT(before, name);
    before = name;
    EXPECT_TRUE(meaning.names == name ||
                names.insert(std::string(meaning.names.substr(0, 2))).second)
        << meaning.names;
    EXPECT_LE(meaning.least, meaning.most) << name;
    meanings.emplace(name, meaning);
  }
  std::set<std::string> taken;
  const auto check = [&](const std::string& verb, const OptionRecord& option) {
    const auto found = meanings.find(option.names.back());
    ASSERT_NE(found, meanings.end()) << verb << ' ' << option.names.back();
    EXPECT_EQ(option.type, found->second.type) << verb << ' ' << option.names.back();
    EXPECT_THAT(option.help, StartsWith(std::string(found->second.help))) << verb;
    EXPECT_EQ(option.type.empty(), std::holds_alternative<bool*>(option.value)) << verb;
    taken.insert(option.names.back());
  };
  for (const VerbRecord& verb : verb_records()) {
    for (const OptionRecord& option : verb.options) check(verb.name, option);
  }
  for (const OptionRecord& option : common_records()) {
    if (option.names.back() != "--help") check("every verb", option);
  }
  EXPECT_EQ(taken.size(), meanings.size());
}

TEST(OptionTable, an_old_name_is_not_one_of_its_verb_and_has_a_value_if_it_has_one_elsewhere) {
  std::map<std::string, bool> has_value;
  for (const OptionMeaning& meaning : option_table())
    has_value.emplace(long_name(meaning.names), !meaning.type.empty());
  std::set<std::string> old;
  for (const VerbRecord& verb : verb_records()) {
    std::set<std::string> names;
    for (const OptionRecord& option : verb.options) names.insert(option.names.back());
    for (const OptionRecord& option : verb.options) {
      for (const std::string& name : option.old_names) {
        EXPECT_FALSE(names.contains(name)) << verb.name << ' ' << name;
        const auto known = has_value.find(name);
        EXPECT_TRUE(known == has_value.end() || known->second != option.type.empty()) << name;
        old.insert(verb.name + " " + name);
      }
    }
  }
  EXPECT_EQ(old, (std::set<std::string>{"groups --keep", "import --from", "rekey --model",
                                        "rekey --to", "rename --map"}));
}

using OldNames = CliTest;

TEST_F(OldNames, do_what_the_new_ones_do_and_are_not_shown) {
  const std::string source = golden_path("2.15.0/fsdp2/ckpt");
  write_file(path("names"), "blocks => layers\n");
  const auto same = [&](const std::string& verb, const std::vector<std::string>& words,
                        const std::string& now, const std::string& old, const std::string& value) {
    std::vector<std::string> args = {verb, source, path("out"), "--dry-run"};
    args.insert(args.end(), words.begin(), words.end());
    args.insert(args.end(), {now, value});
    const CliResult with_new = run_cli(args);
    args[args.size() - 2] = old;
    const CliResult with_old = run_cli(args);
    EXPECT_EQ(with_old.status, with_new.status);
    EXPECT_EQ(with_old.out, with_new.out);
    EXPECT_EQ(with_old.err, with_new.err);
    EXPECT_THAT(with_old.err, Not(HasSubstr("unknown option")));
    const std::string help = run_cli({verb, "--help"}).out;
    EXPECT_THAT(help, HasSubstr(now + " "));
    EXPECT_THAT(help, Not(HasSubstr(" " + old + " ")));
  };
  same("rekey", {}, "--key-by", "--to", "id");
  same("rekey", {"--key-by", "id"}, "--names-from", "--model", source);
  same("rename", {}, "--rename-file", "--map", path("names"));
  same("groups", {"--join", "0,1"}, "--options-of", "--keep", "0");
  same("import", {"--map", "none", "-w", "1", "-k", "app.model.**"}, "--source", "--from", "hf");
}

}  // namespace
}  // namespace fsdp::cli
