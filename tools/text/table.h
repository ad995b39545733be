// SPDX-License-Identifier: Apache-2.0
// Columns of text for a terminal.
#pragma once

#include <cstddef>
#include <iosfwd>
#include <string>
#include <vector>

namespace fsdp::cli {

// The alignment of a column's cells, and the part that a narrow terminal may leave out.
enum class Column {
  kName,    // left; a part within may be left out
  kText,    // left; the end may be left out
  kWhole,   // left, never cut
  kNumber,  // right, never cut
};

// Rows of cells.  Each column is as wide as its widest cell; two blanks stand between columns.
// Columns without any text are left out.
class Table {
 public:
  // `header`: the names of the columns, one for each; or nothing.
  explicit Table(std::vector<Column> columns, std::vector<std::string> header = {})
      : columns_(std::move(columns)), header_(std::move(header)) {}
  // Adds a row.  With fewer cells than columns, the last cell extends over the remaining columns
  // and makes no column wider.  Requires: at most one cell per column.
  void add(std::vector<std::string> cells);
  // Adds a line outside the columns.
  void add_line(std::string text);
  bool empty() const { return rows_.empty(); }
  // Prints lines of at most `columns` characters; 0: no limit.  Names and texts are cut with an
  // ellipsis.  If names would become too short to tell them apart, each row takes several lines:
  // its name, then its other cells, each after the name of its column.
  void print(std::ostream& out, std::size_t columns = 0) const;

 private:
  struct Row {
    bool line;
    std::vector<std::string> cells;
  };
  bool reaches_over(const Row& row, std::size_t column) const {
    return row.cells.size() < columns_.size() && column + 1 == row.cells.size();
  }
  // Returns the width of each column's widest cell; 0 if all its cells are empty.
  std::vector<std::size_t> whole_widths() const;
  // Narrows names and texts until the row fits.  Returns whether that was enough.
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
