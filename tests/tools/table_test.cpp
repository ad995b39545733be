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

}  // namespace
}  // namespace fsdp::cli
