// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/quantized/module_lists.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdp::formats::quantized {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::string kScheme = "int8, a scale for each row";

ModuleState quantized(const std::string& module) {
  return {module + ".weight", kScheme, {}, {}};
}
ModuleState plain(const std::string& module) {
  return {module + ".weight", {}, "bfloat16 [2, 2]", {2, 2}};
}

ModuleFindings compared(const std::string& ignored,
                        const std::map<std::string, ModuleState>& modules, bool tied = false) {
  const Json config = parse_json(R"({"quant_method": "compressed-tensors", "ignore": )" + ignored +
                                 R"(, "config_groups": {"a": {"targets": ["Linear"],
           "weights": {"type": "int", "num_bits": 8, "strategy": "channel"}}}})");
  return compare_modules(config, read_settings(config, "config.json"), tied, modules);
}

std::vector<std::string> messages(const ModuleFindings& found) {
  std::vector<std::string> out;
  for (const Finding& finding : found.findings) out.push_back(finding_text(finding));
  return out;
}

TEST(ModuleLists, a_listed_module_that_is_quantized_is_found) {
  const std::map<std::string, ModuleState> modules = {{"a.0.up", quantized("a.0.up")}};
  EXPECT_THAT(messages(compared("[]", modules)), IsEmpty());
  EXPECT_THAT(messages(compared(R"(["up", "a.0", "Linear"])", modules)), IsEmpty());
  EXPECT_THAT(messages(compared(R"(["a.0.up"])", modules)),
              ElementsAre(HasSubstr("'a.0.up' in ignore says that it is not")));
}

TEST(ModuleLists, expressions_are_read_as_python_matches_them) {
  const std::map<std::string, ModuleState> modules = {{"a.0.up", quantized("a.0.up")}};
  for (const char* const text : {"re:.*up", "re:a\\\\.0\\\\.up$", "re:^a", "re:a.0.up"}) {
    EXPECT_EQ(compared(std::string("[\"") + text + "\"]", modules).findings.size(), 1U) << text;
  }
  for (const char* const text : {"re:up", "re:.*u$", "re:.*[u]p", "re:.*\\\\dup"}) {
    EXPECT_EQ(compared(std::string("[\"") + text + "\"]", modules).findings.size(), 0U) << text;
  }
}

TEST(ModuleLists, a_module_that_other_layers_have_quantized_is_found) {
  const std::map<std::string, ModuleState> modules = {{"a.0.up", quantized("a.0.up")},
                                                      {"a.1.up", plain("a.1.up")},
                                                      {"a.1.down", plain("a.1.down")}};
  EXPECT_THAT(messages(compared("[]", modules)),
              ElementsAre(HasSubstr("'a.1.up.weight': is bfloat16 [2, 2] and not quantized, but 1 "
                                    "of 'a.*.up' are")));
  // Names, parents, expressions, and expressions that are not understood may mean it.
  for (const char* const text : {"a.1.up", "a.1", "re:.*1.up", "re:.*[1].up"}) {
    EXPECT_THAT(messages(compared(std::string("[\"") + text + "\"]", modules)), IsEmpty()) << text;
  }
}

TEST(ModuleLists, half_of_a_tie_is_found) {
  const std::map<std::string, ModuleState> modules = {
      {"lm_head", quantized("lm_head")}, {"model.embed_tokens", plain("model.embed_tokens")}};
  EXPECT_THAT(messages(compared("[]", modules)), IsEmpty());
  EXPECT_THAT(messages(compared("[]", modules, true)),
              ElementsAre(HasSubstr("is quantized (" + kScheme + "), but ")));
}

TEST(ModuleLists, experts_in_several_schemes_are_a_warning) {
  std::map<std::string, ModuleState> modules;
  for (const char* const module : {"a.experts.0.up", "a.experts.1.up", "a.experts.2.up"})
    modules[module] = quantized(module);
  EXPECT_THAT(messages(compared("[]", modules)), IsEmpty());
  modules["a.experts.1.up"].scheme = "other";
  const ModuleFindings found = compared("[]", modules);
  ASSERT_THAT(messages(found), ElementsAre(HasSubstr("have several schemes: 2 " + kScheme)));
  EXPECT_EQ(found.findings[0].severity, Finding::Severity::kWarning);
  EXPECT_EQ(found.findings[0].key, "a.experts.1.up.weight");
}

TEST(ModuleLists, lists_that_would_take_too_long_are_left_out_and_said) {
  std::string long_name(5000, 'a');
  std::map<std::string, ModuleState> modules;
  for (int i = 0; i < 100; ++i) {
    const std::string module = long_name + std::to_string(i);
    modules[module] = quantized(module);
  }
  const ModuleFindings found = compared("[\"re:" + std::string(4000, 'b') + "\"]", modules);
  EXPECT_THAT(found.left, HasSubstr("are too many"));
}

}  // namespace
}  // namespace fsdp::formats::quantized
