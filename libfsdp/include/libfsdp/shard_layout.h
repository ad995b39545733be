// SPDX-License-Identifier: Apache-2.0
// Cuts one tensor over ranks.
//
// Note [rows]: each rank has some rows, distributed like torch.chunk: every rank gets the
// rounded-up share until none are left, so the last ranks may have fewer, or none.  Rows are those
// of dimension 0, as in PyTorch's FSDP2, if there is one for each rank.  Otherwise (a stack of 8
// experts, a table [1, N, D] on 64 ranks) most ranks would have nothing, yet every rank would need
// memory for a whole row, since shares have one size in a collective.  Rows then run over several
// leading dimensions, as few as needed to keep the padding below an eighth of the tensor; if no
// number is enough, each element is a row.  A share is still one run of elements, so only this
// file, and code that names boxes of the whole tensor, depends on the choice.
//
// Note [blocks]: in tensor and expert parallelism a module holds a block of a larger tensor, cut
// along other dimensions of the mesh (placement.h).  Rows are then those of the block.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fsdp {

// Takes one of `parts` parts along a dimension, as torch.chunk divides it.
struct Cut {
  int dim = 0;
  int part = 0;
  int parts = 1;
  bool operator==(const Cut&) const = default;
};

struct ShardLayout {
  std::vector<std::int64_t> shape;  // of the tensor that is cut into rows
  int world_size = 1;
  int row_dims = 0;            // leading dimensions that rows are counted over; 0 if there are none
  std::int64_t rows = 0;       // 1 for a 0-dimensional tensor
  std::int64_t row_numel = 0;  // elements of one row
  std::int64_t chunk_rows = 0;  // rows of a full share
  // See Note [blocks].  Without cuts, `shape` is that of the whole.
  std::vector<Cut> cuts;             // one after the other
  std::vector<std::int64_t> whole;   // shape of the whole tensor
  std::vector<std::int64_t> offset;  // of the block in the whole

  const std::vector<std::int64_t>& whole_shape() const noexcept {
    return cuts.empty() ? shape : whole;
  }
  // The block's index, and the number of blocks; the last cut runs fastest.
  int block() const noexcept;
  int block_count() const noexcept;
  std::int64_t numel() const noexcept { return rows * row_numel; }
  // Returns the number of elements that every rank has in a collective: those of a full share.
  std::int64_t padded_numel() const noexcept { return chunk_rows * row_numel; }
  std::int64_t first_row(int rank) const noexcept;
  std::int64_t rows_of(int rank) const noexcept;
  std::int64_t numel_of(int rank) const noexcept { return rows_of(rank) * row_numel; }
  // Returns [rows_of(rank), the row's dimensions...]; [] or [0] for a 0-dimensional tensor.
  std::vector<std::int64_t> shape_of(int rank) const;
};

// Requires: world_size >= 1.
ShardLayout shard_layout(std::span<const std::int64_t> shape, int world_size);
// Returns the layout of a block.  Requires: the dimensions and parts of the cuts exist.
ShardLayout shard_layout(std::span<const std::int64_t> whole, std::vector<Cut> cuts,
                         int world_size);
// Returns the layouts of all blocks, in order.
std::vector<ShardLayout> layouts_of_blocks(const ShardLayout& any);

}  // namespace fsdp
