// SPDX-License-Identifier: Apache-2.0
// Blocks of a tensor's elements that share a scale.
#pragma once

#include <algorithm>
#include <cstdint>

namespace fsdp::formats::arrays {

// Elements in row-major order as matrices that are cut into blocks from their first row and column.
// The last blocks of a matrix may be smaller.  Blocks are counted in row-major order.
struct BlockGrid {
  std::uint64_t matrices = 1;
  std::uint64_t rows = 1;
  std::uint64_t columns = 1;
  std::uint64_t block_rows = 1;     // at least 1
  std::uint64_t block_columns = 1;  // at least 1

  std::uint64_t scale_rows() const { return ceil(rows, block_rows); }
  std::uint64_t scale_columns() const { return ceil(columns, block_columns); }
  // Returns the number of the block of a matrix's row and column.
  std::uint64_t block_of(std::uint64_t matrix, std::uint64_t row, std::uint64_t column) const {
    return (matrix * scale_rows() + row / block_rows) * scale_columns() + column / block_columns;
  }

 private:
  static std::uint64_t ceil(std::uint64_t size, std::uint64_t block) {
    return size / block + (size % block == 0 ? 0 : 1);
  }
};

// Elements that follow each other: whole rows of one matrix, or a part of one row.
struct GridRun {
  std::uint64_t matrix = 0;
  std::uint64_t row = 0;
  std::uint64_t column = 0;
  std::uint64_t rows = 1;
  std::uint64_t columns = 0;

  std::uint64_t numel() const { return rows * columns; }
  // The blocks from that of the first element to that of the last one: at most as many as elements.
  std::uint64_t first_block(const BlockGrid& grid) const {
    return grid.block_of(matrix, row, column);
  }
  std::uint64_t block_count(const BlockGrid& grid) const {
    return grid.block_of(matrix, row + rows - 1, column + columns - 1) - first_block(grid) + 1;
  }
};

// Calls `each` for runs of at most `most` elements that together are elements [first, first +
// count).  Requires: they lie inside the grid.
template <typename Each>
void for_each_run(const BlockGrid& grid, std::uint64_t first, std::uint64_t count,
                  std::uint64_t most, const Each& each) {
  while (count != 0) {
    const std::uint64_t row = first / grid.columns;
    GridRun run;
    run.matrix = row / grid.rows;
    run.row = row % grid.rows;
    run.column = first % grid.columns;
    const std::uint64_t fit = std::min(most, count);
    if (run.column != 0 || fit < grid.columns) {
      run.columns = std::min(fit, grid.columns - run.column);
    } else {
      run.columns = grid.columns;
      run.rows = std::min(fit / grid.columns, grid.rows - run.row);
    }
    each(run);
    first += run.numel();
    count -= run.numel();
  }
}

// Calls `each(position in the run, elements, block)` for the parts of a run's rows that lie in one
// block.
template <typename Each>
void for_each_block(const BlockGrid& grid, const GridRun& run, const Each& each) {
  std::uint64_t at = 0;
  for (std::uint64_t row = run.row; row < run.row + run.rows; ++row) {
    for (std::uint64_t column = run.column; column < run.column + run.columns;) {
      const std::uint64_t left = run.column + run.columns - column;
      const std::uint64_t inside = grid.block_columns - column % grid.block_columns;
      const std::uint64_t count = left < inside ? left : inside;
      each(at, count, grid.block_of(run.matrix, row, column));
      at += count;
      column += count;
    }
  }
}

}  // namespace fsdp::formats::arrays
