// SPDX-License-Identifier: Apache-2.0
#include "tools/table.h"

#include <sstream>

#include <gtest/gtest.h>

namespace fsdp::cli {
namespace {

TEST(Table, columns_are_as_wide_as_their_widest_cell) {
  Table table({Align::kLeft, Align::kRight, Align::kLeft});
  table.add({"a", "1", "x"});
  table.add({"long", "1000", ""});
  table.add_line("-- a line that is longer than all of them --");
  std::ostringstream out;
  table.print(out);
  EXPECT_EQ(out.str(),
            "a        1  x\n"
            "long  1000\n"
            "-- a line that is longer than all of them --\n");
}

TEST(Table, width_counts_characters_not_bytes) {
  Table table({Align::kLeft, Align::kLeft});
  table.add({"├─ é", "x"});
  table.add({"abcd", "y"});
  std::ostringstream out;
  table.print(out);
  EXPECT_EQ(out.str(), "├─ é  x\nabcd  y\n");
}

TEST(Table, in_few_columns_names_are_cut_and_numbers_are_not) {
  Table table({Align::kLeft, Align::kLeft, Align::kRight, Align::kLeft});
  table.add({"├─ a_name_of_thirty_characters_in_all", "[1024, 1024]", "4.0 MiB", "16 chunks"});
  table.add({"b", "str", "a text that reaches over the rest of the row"});
  std::ostringstream out;
  table.print(out, 50);
  EXPECT_EQ(out.str(),
            "├─ a_name_of_thi…  [1024, 1024]  4.0 MiB  16 chun…\n"
            "b                  str           a text that reac…\n");
  std::ostringstream narrow;
  table.print(narrow, 10);
  EXPECT_NE(narrow.str().find("[1024, 1024]  4.0 MiB"), std::string::npos);
  std::ostringstream wide;
  table.print(wide, 200);
  std::ostringstream whole;
  table.print(whole);
  EXPECT_EQ(wide.str(), whole.str());
}

}  // namespace
}  // namespace fsdp::cli
