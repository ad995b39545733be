// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/map/pattern.h"

#include <string>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fsdp::formats::map {
namespace {

using test::expect_error;

TEST(Pattern, captures_are_components_integers_choices_or_anything) {
  const Pattern pattern("h.{i:int}.{p:q|kv}_proj.{rest:**}");
  EXPECT_EQ(pattern.match("h.10.kv_proj.a.b"),
            (Captures{{"i", "10"}, {"p", "kv"}, {"rest", "a.b"}}));
  EXPECT_EQ(pattern.filled({{"i", "7"}, {"p", "q"}, {"rest", "w"}}), "h.7.q_proj.w");
  for (const char* other :
       {"h.01.q_proj.w", "h.x.q_proj.w", "h.1.k_proj.w", "h.1.q_proj.", "h..q_proj.w",
        "g.1.q_proj.w", "h.1.q_proj", "xh.1.q_proj.w", "h.-1.q_proj.w"})
    EXPECT_FALSE(pattern.match(other)) << other;
  EXPECT_TRUE(Pattern("{a}.w").match("x.w"));
  EXPECT_FALSE(Pattern("{a}.w").match("x.y.w"));
  EXPECT_FALSE(Pattern("{a}.w").match(".w"));
  EXPECT_TRUE(pattern.is_integer("i"));
  EXPECT_FALSE(pattern.is_integer("p"));
}

TEST(Pattern, a_capture_that_occurs_twice_has_one_text) {
  const Pattern pattern("{a}.{b:**}.{a}");
  EXPECT_EQ(pattern.match("x.y.x"), (Captures{{"a", "x"}, {"b", "y"}}));
  EXPECT_FALSE(pattern.match("x.y.z"));
  // The first {a} is as short as possible, and grows until the rest matches.
  EXPECT_EQ(Pattern("{a}-{b}-{a}").match("1-2-x-1-2"), (Captures{{"a", "1-2"}, {"b", "x"}}));
}

TEST(Pattern, earlier_captures_are_as_short_as_possible) {
  EXPECT_EQ(Pattern("{a:**}.{b:**}").match("x.y.z"), (Captures{{"a", "x"}, {"b", "y.z"}}));
  EXPECT_EQ(Pattern("{p:q|qk}{{{b}}}").match("qk{1}"), (Captures{{"p", "qk"}, {"b", "1"}}));
}

TEST(Pattern, doubled_braces_are_braces) {
  EXPECT_TRUE(Pattern("a{{b}}").match("a{b}"));
  EXPECT_EQ(Pattern("a{{b}}").filled({}), "a{b}");
}

TEST(Pattern, a_restriction_is_taken_from_the_other_side) {
  Pattern target("out.{i}.{p}");
  target.restrict_like(Pattern("in.{i:int}.{p:q|k}"));
  EXPECT_TRUE(target.match("out.3.q"));
  EXPECT_FALSE(target.match("out.x.q"));
  EXPECT_FALSE(target.match("out.3.v"));
}

TEST(Pattern, a_parameter_is_added_to_an_integer) {
  Pattern pattern("m.{i+layers}.w{e:int}");
  EXPECT_EQ(pattern.offsets(), (std::map<std::string, std::string>{{"layers", "i"}}));
  pattern.set_offsets([](const std::string& name) { return name == "layers" ? 61 : 0; });
  EXPECT_EQ(pattern.match("m.61.w3"), (Captures{{"i", "0"}, {"e", "3"}}));
  EXPECT_EQ(pattern.match("m.100.w3"), (Captures{{"i", "39"}, {"e", "3"}}));
  EXPECT_EQ(pattern.filled({{"i", "1"}, {"e", "3"}}), "m.62.w3");
  for (const char* other : {"m.60.w3", "m.6.w3", "m.061.w3", "m.x.w3", "m.-61.w3", "m.+61.w3",
                            "m.9223372036854775808.w3", "m.1000000000000000000.w3"})
    EXPECT_FALSE(pattern.match(other)) << other;
  // The largest numbers stay within 64 bits.
  pattern.set_offsets([](const std::string&) { return Pattern::kMaxOffset; });
  EXPECT_EQ(pattern.filled({{"i", "999999999999999999"}, {"e", "3"}}), "m.1999999999999999999.w3");
  EXPECT_FALSE(pattern.match("m.999999999999999999.w3"));
}

TEST(Pattern, a_capture_that_occurs_twice_is_one_integer) {
  Pattern pattern("{i:int}.{i+n:int}");
  pattern.set_offsets([](const std::string&) { return 2; });
  EXPECT_EQ(pattern.match("8.10"), (Captures{{"i", "8"}}));
  EXPECT_FALSE(pattern.match("8.8"));
  EXPECT_FALSE(pattern.match("8.100"));
  EXPECT_FALSE(Pattern("{i:**}.{i+n}").match("a.1"));
}

TEST(Pattern, a_hostile_key_costs_a_bounded_time) {
  // Backtracking without memory would take 2^n steps.
  const Pattern pattern("{a:**}x{b:**}x{c:**}x{d:**}x{e:**}x{f:**}x{g:**}xy");
  EXPECT_FALSE(pattern.match(std::string(4000, 'x')));
  EXPECT_FALSE(Pattern("{a:**}x{b:**}x{a}x{b}x{c:**}y").match(std::string(4000, 'x')));
  EXPECT_FALSE(Pattern("{a:**}").match(std::string(Pattern::kMaxKeyBytes + 1, 'x')));
}

TEST(Pattern, what_is_not_well_formed_is_refused) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "is empty"},
      {"a{b", "a '{' without a '}'"},
      {"a}b", "a '}' without a '{'"},
      {"a{}", "names a capture"},
      {"a{b c}", "names a capture"},
      {"{a}{b}", "no text between capture {b} and the one before it"},
      {"{a:q||k}", "an empty text"},
      {"{a+}", "names a capture 'a+'"},
      {"{+n}", "names a capture '+n'"},
      {"{a+n+m}", "names a capture 'a+n+m'"},
      {"{a+n:q|k}", "adds to {a}, which is not restricted to integers"},
      {"{a+n:**}", "adds to {a}, which is not restricted to integers"},
      {"{a:}", "an empty text"},
      {"{a}.{b}.{c}.{d}.{e}.{f}.{g}.{h}.{i}", "more than 8 captures"}};
  for (const auto& [text, says] : cases)
    expect_error(ErrorCode::kUsage, says, [text = text] { Pattern{text}; });
  expect_error(ErrorCode::kUsage, "4097 bytes", [] { Pattern{std::string(4097, 'a')}; });
}

}  // namespace
}  // namespace fsdp::formats::map
