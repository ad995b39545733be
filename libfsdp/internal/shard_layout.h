// SPDX-License-Identifier: Apache-2.0
// How one tensor is cut along dimension 0, as torch.chunk cuts it: every rank gets the rounded-up
// share of rows until none are left, so that the last ranks may have fewer, or none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fsdp {

struct ShardLayout {
  std::vector<std::int64_t> shape;  // of the whole tensor
  int world_size = 1;
  std::int64_t rows = 0;        // size of dimension 0; 1 for a 0-dimensional tensor
  std::int64_t row_numel = 0;   // elements of one row
  std::int64_t chunk_rows = 0;  // rows of a full share

  std::int64_t numel() const noexcept { return rows * row_numel; }
  // Elements a rank's share takes in a collective: that of a full one.
  std::int64_t padded_numel() const noexcept { return chunk_rows * row_numel; }
  std::int64_t first_row(int rank) const noexcept;
  std::int64_t rows_of(int rank) const noexcept;
  std::int64_t numel_of(int rank) const noexcept { return rows_of(rank) * row_numel; }
  // [rows_of(rank), ...]; [] or [0] for a 0-dimensional tensor.
  std::vector<std::int64_t> shape_of(int rank) const;
};

// Requires: world_size >= 1.
ShardLayout shard_layout(std::span<const std::int64_t> shape, int world_size);

}  // namespace fsdp
