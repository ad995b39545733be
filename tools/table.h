// SPDX-License-Identifier: Apache-2.0
// Columns of text for a terminal.
#pragma once

#include <cstddef>
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
  // In `columns` characters a line, where there are more than 0: the first cell of a row, and a
  // last one that is not a number, are cut with an ellipsis.  Numbers stay whole, even where a line
  // becomes too long.
  void print(std::ostream& out, std::size_t columns = 0) const;

 private:
  struct Row {
    bool line;
    std::vector<std::string> cells;
  };
  // Each as wide as its widest cell, less what does not fit.
  std::vector<std::size_t> widths(std::size_t columns) const;
  std::string line(const Row& row, const std::vector<std::size_t>& widths,
                   std::size_t columns) const;

  std::vector<Align> columns_;
  std::vector<Row> rows_;
};

}  // namespace fsdp::cli
