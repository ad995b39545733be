// SPDX-License-Identifier: Apache-2.0
#include "tools/text/table.h"

#include <sstream>

#include <gtest/gtest.h>

namespace fsdp::cli {
namespace {

std::string printed(const Table& table, std::size_t columns = 0) {
  std::ostringstream out;
  table.print(out, columns);
  return out.str();
}

TEST(Table, columns_are_as_wide_as_their_widest_cell) {
  Table table({Column::kName, Column::kNumber, Column::kText});
  table.add({"a", "1", "x"});
  table.add({"long", "1000", ""});
  table.add_line("-- a line that is longer than all of them --");
  EXPECT_EQ(printed(table),
            "a        1  x\n"
            "long  1000\n"
            "-- a line that is longer than all of them --\n");
}

TEST(Table, a_header_names_the_columns) {
  Table table({Column::kName, Column::kNumber}, {"key", "elements"});
  table.add({"a", "1"});
  EXPECT_EQ(printed(table),
            "key  elements\n"
            "a           1\n");
}

TEST(Table, columns_without_text_are_left_out) {
  Table table({Column::kName, Column::kNumber, Column::kText, Column::kText},
              {"key", "zeros", "note", "place"});
  table.add({"a", "", "x", ""});
  table.add({"b", "", "y", ""});
  EXPECT_EQ(printed(table),
            "key  note\n"
            "a    x\n"
            "b    y\n");
}

TEST(Table, width_counts_characters_not_bytes) {
  Table table({Column::kName, Column::kText});
  table.add({"├─ é", "x"});
  table.add({"abcd", "y"});
  EXPECT_EQ(printed(table), "├─ é  x\nabcd  y\n");
}

TEST(Table, in_few_columns_names_and_texts_are_cut_and_numbers_are_not) {
  Table table({Column::kName, Column::kWhole, Column::kNumber, Column::kText});
  table.add({"├─ a_name_of_thirty_characters_in_all", "[1024, 1024]", "4.0 MiB", "16 chunks"});
  table.add({"b", "str", "a text that reaches over the rest of the row"});
  EXPECT_EQ(printed(table, 50),
            "├─ a_n…ers_in_all  [1024, 1024]  4.0 MiB  16 chun…\n"
            "b                  str           a text that reac…\n");
  EXPECT_EQ(printed(table, 200), printed(table));
}

TEST(Table, where_cutting_is_not_enough_cells_stand_below_their_name) {
  Table table({Column::kName, Column::kNumber, Column::kNumber, Column::kNumber},
              {"key", "least", "most", "mean"});
  table.add({"model.layers.0.weight", "-1.23456e-05", "1.23456e-05", "7.5"});
  EXPECT_EQ(printed(table, 32),
            "model.layers.0.weight\n"
            "  least -1.23456e-05\n"
            "  most 1.23456e-05  mean 7.5\n");
  Table words({Column::kName, Column::kWhole});
  words.add({"key", "float32 [2, 3] in A, nothing of that name in B"});
  EXPECT_EQ(printed(words, 30),
            "key\n"
            "  float32 [2, 3] in A, nothing\n"
            "  of that name in B\n");
}

}  // namespace
}  // namespace fsdp::cli
