// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/arrays/block_grid.h"

#include <algorithm>

namespace fsdp::formats::arrays {

void for_each_run(const BlockGrid& grid, std::uint64_t first, std::uint64_t count,
                  std::uint64_t most, const std::function<void(const GridRun&)>& each) {
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

}  // namespace fsdp::formats::arrays
