// SPDX-License-Identifier: Apache-2.0
// Columns of text for a terminal.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace fsdp::cli {

enum class Align { kLeft, kRight };

// Rows of cells, each column as wide as its widest cell, two blanks between.  Width counts code
// points.
class Table {
 public:
  explicit Table(std::vector<Align> columns) : columns_(std::move(columns)) {}
  // The last cell of a row that has fewer cells than there are columns reaches over the rest: it
  // makes no column wider. Requires: at most one cell a column.
  void add(std::vector<std::string> cells);
  // A line that takes no part in the columns.
  void add_line(std::string text);
  void print(std::ostream& out) const;

 private:
  struct Row {
    bool line;
    std::vector<std::string> cells;
  };
  std::vector<Align> columns_;
  std::vector<Row> rows_;
};

}  // namespace fsdp::cli
