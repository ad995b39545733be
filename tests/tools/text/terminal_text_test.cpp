// SPDX-License-Identifier: Apache-2.0
#include "tools/text/terminal_text.h"

#include <gtest/gtest.h>

#include "tools/text/colour.h"

namespace fsdp::cli {
namespace {

TEST(TerminalText, colours_take_no_columns) {
  EXPECT_EQ(width_of("├─ é"), 4U);
  EXPECT_EQ(width_of("a " + coloured("differ", Colour::kRed, true) + " b"), 10U);
  EXPECT_EQ(width_of("\x1b[unfinished"), 0U);
}

TEST(TerminalText, an_ellipsis_stands_for_what_is_left_out) {
  EXPECT_EQ(cut_end("abcdef", 4), "abc…");
  EXPECT_EQ(cut_within("abcdefgh", 5), "abc…h");
  EXPECT_EQ(cut_within("abcdefgh", 3), "…gh");
  EXPECT_EQ(cut_within("éééééééé", 6), "ééé…éé");
  EXPECT_EQ(cut_within("│  └─ weight.a", 11), "│  └─ wei…a");
  EXPECT_EQ(cut_within("abc", 3), "abc");
  EXPECT_EQ(cut_within("layers.{0..1249} x1250", 18), "…s.{0..1249} x1250");
  EXPECT_EQ(cut_within("a.1234567.proj.weight", 18), "a.1234567…j.weight");
  EXPECT_EQ(cut_within("12345678", 5), "12…78");
  EXPECT_EQ(cut_within("abc", 1), "…");
  EXPECT_EQ(cut_within("abc", 0) + cut_end("abc", 0), "");
}

TEST(TerminalText, lines_break_at_blanks) {
  EXPECT_EQ(wrapped("  one two three", 10), "  one two\n  three");
  EXPECT_EQ(wrapped("one two", 7), "one two");
  EXPECT_EQ(wrapped("one two three", 0), "one two three");
  EXPECT_EQ(wrapped("a_word_that_is_wider b", 4, 1), "a_word_that_is_wider\n b");
  EXPECT_EQ(hanging("-x  ", "explained in words", 14, 4), "-x  explained\n    in words");
}

}  // namespace
}  // namespace fsdp::cli
