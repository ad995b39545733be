// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/text.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fsdp::formats {
namespace {

using test::expect_error;

// UTF-8 by hand, since an escape in a literal would depend on the compiler's charset.
const std::string kUmlaut = "\xC3\xBC";
const std::string kEuro = "\xE2\x82\xAC";
const std::string kRocket = "\xF0\x9F\x9A\x80";

TEST(Cat, joins_texts_characters_and_numbers) {
  EXPECT_EQ(cat("at byte ", 12, ' ', 'c', std::string("!")), "at byte 12 c!");
  EXPECT_EQ(cat(), "");
  EXPECT_EQ(cat(std::numeric_limits<std::int64_t>::min(), '/',
                std::numeric_limits<std::uint64_t>::max(), '/', std::int16_t{-1}),
            "-9223372036854775808/18446744073709551615/-1");
  EXPECT_EQ(cat(0.1, ' ', 1e100, ' ', -2.0, ' ', 1234567.0), "0.1 1e+100 -2 1.23457e+06");
  EXPECT_EQ(cat(std::string_view("a\0b", 3)).size(), 3U);
}

TEST(Joined, puts_the_separator_between_all_words) {
  const std::vector<std::string> words = {"", "a", "", "b"};
  EXPECT_EQ(joined(words, ", "), ", a, , b");
  EXPECT_EQ(joined(std::vector<std::string>{}, ", "), "");
}

TEST(Escape, leaves_text_that_a_terminal_shows) {
  for (const std::string& text : {std::string("layers.0.weight"), kUmlaut, kEuro, kRocket}) {
    EXPECT_EQ(escape(text), text);
  }
}

TEST(Escape, shows_what_a_terminal_would_act_on) {
  EXPECT_EQ(escape("\x1B[31mred"), "\\x1b[31mred");
  EXPECT_EQ(escape("a\nb\tc\r"), "a\\x0ab\\x09c\\x0d");
  EXPECT_EQ(escape(std::string("\0", 1)), "\\x00");
  EXPECT_EQ(escape("\x7F"), "\\x7f");
  EXPECT_EQ(escape("\xC2\x9B"), "\\xc2\\x9b") << "U+009B, a control sequence introducer";
  EXPECT_EQ(escape("a\\b"), "a\\\\b");
  EXPECT_EQ(escape("::error::x"), "\\x3a:error::x") << "a command of GitHub's workflows";
  EXPECT_EQ(escape("  ##vso[x]"), "  \\x23#vso[x]") << "a command of Azure's pipelines";
  EXPECT_EQ(escape("a::b ##"), "a::b ##");
}

TEST(Escape, shows_what_nobody_would_see) {
  EXPECT_EQ(escape("a\u202Eb"), "a\\u202eb") << "right-to-left override";
  EXPECT_EQ(escape("a\u2067b\u2069"), "a\\u2067b\\u2069") << "isolates";
  EXPECT_EQ(escape("a\u200Bb\u200D\uFEFF"), "a\\u200bb\\u200d\\ufeff");
  EXPECT_EQ(escape("w\u00A0"), "w\\u00a0") << "a no-break space";
  EXPECT_EQ(escape("\u2028\uFE0F"), "\\u2028\\ufe0f");
  EXPECT_EQ(escape("\U000E0041"), "\\U000e0041") << "a tag";
}

TEST(Escape, shows_bytes_that_are_no_utf8) {
  EXPECT_EQ(escape("\xFF"), "\\xff");
  EXPECT_EQ(escape("\xC3"), "\\xc3");
  EXPECT_EQ(escape("\xE2\x82"), "\\xe2\\x82");
  EXPECT_EQ(escape("\xC0\xAF"), "\\xc0\\xaf") << "an overlong slash";
  EXPECT_EQ(escape("\xED\xA0\x80"), "\\xed\\xa0\\x80") << "a surrogate";
}

TEST(Quote, cuts_long_text_between_characters) {
  EXPECT_EQ(quote("abc"), "'abc'");
  EXPECT_EQ(quote(""), "''");
  EXPECT_EQ(quote("abcdef", 3), "'abc...'");
  EXPECT_EQ(quote("abc", 3), "'abc'");
  EXPECT_EQ(quote(kUmlaut + kEuro + kRocket, 2), "'" + kUmlaut + kEuro + "...'");
  EXPECT_EQ(quote("\n\n\n", 2), "'\\x0a\\x0a...'");
  EXPECT_EQ(quote(std::string(1'000'000, 'x')).size(), 80U + 5);
}

TEST(HumanBytes, has_one_decimal_above_a_kibibyte) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.0 KiB");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes((1U << 20U) - 1), "1.0 MiB");
  EXPECT_EQ(human_bytes(std::uint64_t{2} << 30U), "2.0 GiB");
  EXPECT_EQ(human_bytes(~std::uint64_t{0}), "16.0 EiB");
}

TEST(GroupDigits, groups_by_three) {
  EXPECT_EQ(group_digits(0), "0");
  EXPECT_EQ(group_digits(999), "999");
  EXPECT_EQ(group_digits(1000), "1,000");
  EXPECT_EQ(group_digits(1234567), "1,234,567");
  EXPECT_EQ(group_digits(~std::uint64_t{0}), "18,446,744,073,709,551,615");
}

TEST(ShapeText, is_a_list_in_brackets) {
  EXPECT_EQ(shape_text({}), "[]");
  EXPECT_EQ(shape_text(std::vector<std::int64_t>{2, 3}), "[2, 3]");
  EXPECT_EQ(shape_text(std::vector<std::int64_t>{-1}), "[-1]");
}

TEST(ParseSize, knows_units_of_1024_and_of_1000) {
  const std::vector<std::pair<std::string, std::uint64_t>> cases = {
      {"0", 0},
      {"4096", 4096},
      {"4096B", 4096},
      {"1K", 1024},
      {"1k", 1024},
      {"256MiB", 256U << 20U},
      {"1.5G", std::uint64_t{3} << 29U},
      {"5GB", 5'000'000'000},
      {"2kB", 2000},
      {"3TB", 3'000'000'000'000},
      {"2TiB", std::uint64_t{2} << 40U},
  };
  for (const auto& [text, bytes] : cases) EXPECT_EQ(parse_size(text), bytes) << text;
}

TEST(ParseSize, refuses_what_is_no_size) {
  for (const std::string text : {"", "x", "-1", "1X", "1KX", "1 K", "1KiBs", "nan", "inf", "1e30",
                                 "9999999999999T", "0x10", "1BB", "5\x80"}) {
    expect_error(ErrorCode::kUsage, "is not a number of bytes", [&] { parse_size(text); });
  }
}

TEST(NaturalLess, counts_runs_of_digits_as_numbers) {
  const std::vector<std::string> sorted = {"",
                                           "layers.0",
                                           "layers.1",
                                           "layers.2",
                                           "layers.2.a",
                                           "layers.10",
                                           "layers.010b",
                                           "layers.10c",
                                           "layers.99999999999999999999",
                                           "layers.x"};
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    for (std::size_t j = 0; j < sorted.size(); ++j) {
      EXPECT_EQ(natural_less(sorted[i], sorted[j]), i < j) << sorted[i] << " " << sorted[j];
    }
  }
}

TEST(NaturalLess, tells_equal_numbers_apart) {
  EXPECT_NE(natural_less("a01", "a1"), natural_less("a1", "a01"));
  EXPECT_FALSE(natural_less("a01", "a01"));
}

TEST(IsUtf8, accepts_every_length_and_refuses_every_malformation) {
  for (const std::string& text : {std::string(), std::string("abc"), kUmlaut, kEuro, kRocket,
                                  std::string("\xF4\x8F\xBF\xBF"), std::string("\0", 1)}) {
    EXPECT_TRUE(is_utf8(text)) << escape(text);
  }
  for (const std::string text :
       {"\x80", "\xC3", "\xC3(", "\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF0\x80\x80\x80",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "a\xE2\x82"}) {
    EXPECT_FALSE(is_utf8(text)) << escape(text);
  }
}

TEST(Nearest, finds_a_slip_of_the_pen) {
  const std::vector<std::string> verbs = {"inspect", "consolidate", "convert", "verify", "diff"};
  EXPECT_EQ(nearest("inspct", verbs), "inspect");
  EXPECT_EQ(nearest("consolidte", verbs), "consolidate");
  EXPECT_EQ(nearest("veryfi", verbs), "verify");
  EXPECT_EQ(nearest("banana", verbs), "");
  EXPECT_EQ(nearest("x", {}), "");
  EXPECT_EQ(nearest("rm", std::vector<std::string>{"ls", "rename"}), "");
}

}  // namespace
}  // namespace fsdp::formats
