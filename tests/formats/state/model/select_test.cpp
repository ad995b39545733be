// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/select.h"

#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"

namespace fsdp::formats {
namespace {

TEST(Glob, matches_as_documented) {
  struct Case {
    const char* glob;
    const char* key;
    bool matches;
  };
  for (const Case& c : std::initializer_list<Case>{
           {"model.*", "model.weight", true},
           {"model.*", "model.layers.0", false},
           {"model.**", "model.layers.0.weight", true},
           {"model.**", "model", false},
           {"**.weight", "a.b.weight", true},
           {"**weight", "weight", true},
           {"layers.?.w", "layers.3.w", true},
           {"layers.?.w", "layers.10.w", false},
           {"layers.?w", "layers..w", false},
           {"layers.[0-3].w", "layers.2.w", true},
           {"layers.[0-3].w", "layers.4.w", false},
           {"layers.[!0-3].w", "layers.4.w", true},
           {"a[.]b", "a.b", true},
           {"a[]]b", "a]b", true},
           {"a[b-]", "a-", true},
           {"", "", true},
           {"", "a", false},
           {"a", "ab", false},
           {"*", "", true},
           {"*.*.*", "a.b.c", true},
           {"a****.w", "a.b.w", true},
           {"a*.w", "a.b.w", false},
       }) {
    EXPECT_EQ(Glob(c.glob).matches(c.key), c.matches) << c.glob << " on " << c.key;
  }
}

TEST(Glob, an_unclosed_set_is_refused_with_its_position) {
  try {
    Glob("layers.[0");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_STREQ(error.what(), "glob 'layers.[0': '[' at position 7 is not closed");
  }
}

// With backtracking this pattern would take longer than the age of the universe.
TEST(Glob, no_pattern_is_exponential) {
  std::string glob;
  for (int i = 0; i < 40; ++i) glob += "**a";
  EXPECT_FALSE(Glob(glob + "b").matches(std::string(2000, 'a')));
  // Nor quadratic: each key would take this many steps squared.
  EXPECT_FALSE(Glob(std::string(1'000'000, '*') + "b").matches("a"));
}

TEST(KeySelection, excluded_beats_included) {
  const KeySelection selection{globs_of({"model.**"}), globs_of({"**.bias"})};
  EXPECT_TRUE(selection.selects("model.l.weight"));
  EXPECT_FALSE(selection.selects("model.l.bias"));
  EXPECT_FALSE(selection.selects("optim.l.weight"));
  EXPECT_TRUE(KeySelection{}.selects("anything"));
  EXPECT_TRUE(KeySelection{}.everything());
}

}  // namespace
}  // namespace fsdp::formats
