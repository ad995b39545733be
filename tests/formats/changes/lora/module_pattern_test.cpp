// SPDX-License-Identifier: Apache-2.0
// What matches is what Python's re.match(r"(.*\\.)?(PATTERN)$", module) matches.
#include "formats/changes/lora/module_pattern.h"

#include <string>

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

TEST(ModulePattern, patterns_match_what_python_matches) {
  const struct {
    const char* pattern;
    const char* module;
    bool matches;
  } cases[] = {{"q", "q", true},
               {"q", "layers.1.q", true},
               {"q", "layers.1.qq", false},
               {"1.q", "layers.11.q", false},
               {"1.q", "layers.1.q", true},
               {"q|k", "a.k", true},
               {"q|k", "a.v", false},
               {"^layers.q", "layers.q", true},
               {"^layers.q", "a.layers.q", false},
               {"layers\\.[01]\\..*_proj", "m.layers.1.q_proj", true},
               {"layers\\.[01]\\..*_proj", "m.layers.2.q_proj", false},
               {"layers\\.[^01]\\.q", "layers.2.q", true},
               {"layers\\.\\d+\\.q", "layers.27.q", true},
               {"l{2}\\w?", "a.lla", true},
               {"l{2,3}", "l", false},
               {"l{2,3}", "lll", true},
               {"l{2,}", "lllll", true},
               {"(?:a.)+q", "a.a.q", true},
               {".*", "", true},
               {"", "a.", true},
               {"", "a", false},
               {"a$", "a", true},
               {"[]a]", "]", true},
               {"[a-c-]x", "-x", true}};
  for (const auto& one : cases) {
    const auto pattern = ModulePattern::parse(one.pattern);
    ASSERT_TRUE(pattern.has_value()) << one.pattern;
    EXPECT_EQ(pattern->matches(one.module), one.matches) << one.pattern << " " << one.module;
  }
}

TEST(ModulePattern, what_is_not_understood_is_not_guessed) {
  for (const char* const pattern : {"(?=a)", "(?i)a", "a**", "*", "(", ")", "[", "[a", "\\b", "\\1",
                                    "a{", "a{2", "{2}", "[\\w-a]", "a\\", "\xc3\xa4", "a{999}"}) {
    EXPECT_FALSE(ModulePattern::parse(pattern).has_value()) << pattern;
  }
}

TEST(ModulePattern, hostile_patterns_end_soon) {
  EXPECT_FALSE(ModulePattern::parse("((((a{64}){64}){64}){64}){64}").has_value());
  EXPECT_FALSE(ModulePattern::parse(std::string(1000, '(')).has_value());
  const auto nested = ModulePattern::parse("(a*)*(a*)*(a|a)*b");
  ASSERT_TRUE(nested.has_value());
  EXPECT_FALSE(nested->matches(std::string(2000, 'a')));
}

}  // namespace
}  // namespace fsdp::formats
