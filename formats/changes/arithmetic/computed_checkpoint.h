// SPDX-License-Identifier: Apache-2.0
// A checkpoint some of whose tensors are computed while they are read: every writer then writes the
// results, in any layout, without knowing.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "formats/bytes/base/byte_source.h"
#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats {

// The elements of a computed tensor, dense and row-major.  Reads cover whole elements.
struct ComputedElements {
  std::shared_ptr<const ByteSource> source;
  bool checked = false;  // all that they are computed from carries checksums, which are compared
};

struct ComputedTensor {
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
  // Locates what the tensor is computed from.  Called when the tensor's turn comes, possibly more
  // than once, by one thread at a time.
  std::function<ComputedElements()> open;
};

// A computed tensor that has no place in the base.
struct AddedTensor {
  std::string key;
  KeyPath path;
  ComputedTensor tensor;
};

// `base` with these tensors, by their positions in its index, in the places of its own.  Its trees
// and tensor objects know nothing of them: content is edited instead (tensor_reference).
// `added`: follow the base's in the index.  Requires: their keys and paths are new.
// `finish` is called by check_unchanged, before an output is committed: it compares the checksums
// that are still open.
// `path`: of the whole, for messages.
std::unique_ptr<Checkpoint> with_computed_tensors(std::shared_ptr<const Checkpoint> base,
                                                  std::string path,
                                                  std::map<std::size_t, ComputedTensor> computed,
                                                  std::function<void()> finish,
                                                  std::vector<AddedTensor> added = {});

}  // namespace fsdp::formats
