// SPDX-License-Identifier: Apache-2.0
// A checkpoint with tensors that are computed while they are read.  Writers of all layouts treat it
// like any other checkpoint.
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
  bool checked = false;  // everything they are computed from has checksums, which are compared
};

struct ComputedTensor {
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
  // Locates what the tensor is computed from.  Called before the tensor is read, possibly more than
  // once, by one thread at a time.
  std::function<ComputedElements()> open;
};

// A computed tensor that has no place in the base.
struct AddedTensor {
  std::string key;
  KeyPath path;
  ComputedTensor tensor;
};

// Returns `base` with computed tensors in place of those at the given positions of its index.  The
// trees and tensor objects of the result do not show them: edit the content instead
// (tensor_reference).
// `added`: follow the base's tensors in the index.  Requires: their keys and paths are new.
// `finish`: called by check_unchanged, before an output is committed; compares the checksums that
// are still open.
// `path`: of the result, for messages.
std::unique_ptr<Checkpoint> with_computed_tensors(std::shared_ptr<const Checkpoint> base,
                                                  std::string path,
                                                  std::map<std::size_t, ComputedTensor> computed,
                                                  std::function<void()> finish,
                                                  std::vector<AddedTensor> added = {});

}  // namespace fsdp::formats
