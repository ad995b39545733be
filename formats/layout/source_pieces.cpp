// SPDX-License-Identifier: Apache-2.0
#include "formats/layout/source_pieces.h"

#include "formats/base/error.h"
#include "formats/base/text.h"
#include "formats/model/check.h"

namespace fsdp::formats {

TargetPiece whole_tensor_piece(const Checkpoint& checkpoint, std::size_t number) {
  const TensorEntry& tensor = checkpoint.index().tensors[number];
  TargetPiece piece;
  piece.key = tensor.key;
  piece.dtype = tensor.dtype;
  piece.box = whole_box(tensor.shape);
  piece.sources = [&checkpoint, number] {
    const TensorEntry& entry = checkpoint.index().tensors[number];
    std::vector<SourceChunk> sources;
    sources.reserve(entry.chunks.size());
    for (std::size_t c = 0; c < entry.chunks.size(); ++c) {
      const BoxView box = entry.chunks.box(c);
      if (volume(box) == 0) continue;
      sources.push_back(
          {{{box.offset.begin(), box.offset.end()}, {box.size.begin(), box.size.end()}},
           checkpoint.chunk(entry, c)});
    }
    return sources;
  };
  return piece;
}

TargetPiece storage_piece(const Checkpoint& checkpoint, const StorageRef& storage) {
  TargetPiece piece;
  piece.key = "storage " + storage.key;
  piece.dtype = storage.dtype;
  piece.box = whole_box(std::vector<std::int64_t>{static_cast<std::int64_t>(storage.numel)});
  if (storage.untyped && checkpoint.storage(storage).swap_bytes) {
    throw Error(ErrorCode::kUnsupported,
                cat(checkpoint.description().path, ": storage ", quote(storage.key),
                    " is big-endian and does not say how wide its elements are"));
  }
  piece.sources = [&checkpoint, storage, box = piece.box] {
    return std::vector<SourceChunk>{{box, checkpoint.storage(storage)}};
  };
  return piece;
}

void check_before_copy(const Checkpoint& checkpoint, const std::function<bool()>& cancelled) {
  Findings findings = checkpoint.findings();
  const Index& index = checkpoint.index();
  check_extents(index, findings);
  for (const TensorEntry& tensor : index.tensors) check_coverage(tensor, findings);
  throw_if_damaged(findings, checkpoint.description().path);
  for (const TensorEntry& tensor : index.tensors) {
    if (cancelled && cancelled()) throw Error(ErrorCode::kInterrupted, "interrupted");
    for (std::size_t c = 0; c < tensor.chunks.size(); ++c) {
      if (volume(tensor.chunks.box(c)) != 0) checkpoint.chunk(tensor, c);
    }
  }
}

}  // namespace fsdp::formats
