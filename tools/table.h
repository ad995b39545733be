// SPDX-License-Identifier: Apache-2.0
// Columns of text for a terminal.
#pragma once

#include <cstddef>
#include <iosfwd>
#include <string>
#include <vector>

namespace fsdp::cli {

// The alignment of a column's cells, and the part of them that a narrow terminal may leave out.
enum class Column {
  kName,    // left; a part within may be left out
  kText,    // left; the end may be left out
  kWhole,   // left, never cut
  kNumber,  // right, never cut
};

// Rows of cells, each column as wide as its widest cell, two blanks between.  Columns without any
// text are left out.
class Table {
 public:
  // `header`: the names of the columns, one for each; or nothing.
  explicit Table(std::vector<Column> columns, std::vector<std::string> header = {})
      : columns_(std::move(columns)), header_(std::move(header)) {}
  // The last cell of a row that has fewer cells than there are columns reaches over the rest: it
  // makes no column wider. Requires: at most one cell a column.
  void add(std::vector<std::string> cells);
  // A line that takes no part in the columns.
  void add_line(std::string text);
  bool empty() const { return rows_.empty(); }
  // In `columns` characters a line, where there are more than 0.  Names and texts are cut with an
  // ellipsis.  Where names would become too short to be told apart, each row is several lines: its
  // name, then its other cells, each behind the name of its column.
  void print(std::ostream& out, std::size_t columns = 0) const;

 private:
  struct Row {
    bool line;
    std::vector<std::string> cells;
  };
  bool reaches_over(const Row& row, std::size_t column) const {
    return row.cells.size() < columns_.size() && column + 1 == row.cells.size();
  }
  // Each as wide as its widest cell; 0 where all are empty.
  std::vector<std::size_t> whole_widths() const;
  // Takes from names and texts what does not fit.  Returns whether that was enough.
  bool shrink(std::vector<std::size_t>& widths, std::size_t columns) const;
  std::string cut(const std::string& cell, Column column, std::size_t width) const;
  std::string line(const Row& row, const std::vector<std::size_t>& widths,
                   std::size_t columns) const;
  std::string stacked(const Row& row, std::size_t columns) const;

  std::vector<Column> columns_;
  std::vector<std::string> header_;
  std::vector<Row> rows_;
};

}  // namespace fsdp::cli
