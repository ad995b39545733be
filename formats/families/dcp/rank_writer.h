// SPDX-License-Identifier: Apache-2.0
// A torch.distributed.checkpoint folder written by many processes that each hold some parts: every
// process plans the same folder and writes its own file of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "formats/bytes/outputs/file.h"
#include "formats/bytes/outputs/stream.h"
#include "formats/containers/pickle/value.h"
#include "formats/families/dcp/folder_plan.h"

namespace fsdp::formats::dcp {

// A tensor as the ranks hold it.
struct PartTensor {
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;  // of the whole tensor
  // The rank that writes each part, cut by torch.chunk's rule along rows; null: every rank has the
  // whole.
  std::shared_ptr<const std::vector<std::int64_t>> writers;
  // Leading dimensions that make up the rows (shard_spec.h): 1 for those of dimension 0.
  std::size_t row_dims = 1;
  // If not empty: the tensor consists of these blocks, each cut along its own rows into equally
  // many parts, and `writers` has the parts of one block after the other.
  std::vector<TensorBlock> blocks;
};

// Returns the dense tensor that stands for tensor `number` of a list, as content_of does for
// tensors of an index (content.h).
Value part_reference(std::size_t number, const PartTensor& tensor);

// Values are in rank 0's file; whole tensors are spread over the ranks as DCP does it
// (Balance, folder_plan.h).  A part is one chunk, or several if its rows are more than one box
// (boxes_of_rows).  Parts without rows have no chunk; tensors without dimensions or elements are in
// the file of the rank that has the first part.
class RankPlan : public FolderPlan {
 public:
  // `content`: a nested dict whose tensors are references to `tensors`.  It must be the same on
  // every rank, except for plain values, which only rank 0 needs; `with_values`: encodes them.
  // Throws: kUsage (world size), kUnsupported naming a value (a tuple) that holds a tensor in
  // parts; the errors of entries_of and write_pickle.
  RankPlan(const Value& content, std::span<const PartTensor> tensors, std::int64_t world_size,
           bool with_values);
};

// Returns the bytes of tensor `number` on this rank, dense and row-major: its part, or the whole.
// Lifetime: until the next call.
using PartBytes = std::function<std::span<const std::byte>(std::size_t number)>;

// Writes `rank`'s part of the folder, after reserving space for it; does not finish the file.
// `use`: see OutputStream.
// Throws: kNoSpace, kIo; the errors of `bytes`; kShape if `bytes` returns another number of bytes
// than planned; kExtent if anything else does not lie at its planned place.
void write_rank_file(OutputFile& file, const RankPlan& layout, std::int64_t rank,
                     const PartBytes& bytes, CacheUse use);

// Writes `.metadata`.
void write_metadata_file(OutputFile& file, const FolderPlan& items);

}  // namespace fsdp::formats::dcp
