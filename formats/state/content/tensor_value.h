// SPDX-License-Identifier: Apache-2.0
// Tensors inside the values of a torch.save file: the calls that make them, and their arguments.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "formats/containers/pickle/value.h"
#include "formats/state/model/chunk_data.h"

namespace fsdp::formats {

// A dense tensor as torch.save describes it: a view over a storage.
struct TensorValue {
  const StorageRef* storage = nullptr;  // Lifetime: that of the value it was read from
  DType dtype = DType::kFloat32;
  std::uint64_t storage_offset = 0;  // in elements of dtype
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  // in elements of dtype
  bool conjugate = false;             // the storage holds the conjugate
  bool negate = false;                // the storage holds the negative
};

// Checks the arguments of a call that makes a tensor: types, bounds of the storage.  Other values
// pass.
// Throws: kReduce, kType, kTensorBounds.
void check_tensor_call(const Value& value);

// Returns `value` as a dense tensor; parameters, buffers and tensors with attributes count as the
// tensor they wrap.  Returns nothing for values that are not tensors, and for those that
// special_tensor names.
std::optional<TensorValue> dense_tensor(const Value& value);

// Returns the kind of a tensor that is more than a view over a storage: "quantized", "sparse",
// "meta", "nested", "sharded" (a rank's part of a DTensor or ShardedTensor), "subclass" (a
// library's own class).  Empty for dense tensors and for other values.
std::string special_tensor(const Value& value);

// Returns whether the value is a dense or a special tensor.
bool is_tensor(const Value& value);

// Returns the words for a special tensor in messages: "quantized", "a
// torchao.optim.subclass_8bit.OptimState8bit".
std::string special_tensor_text(const Value& value);

// Returns the call that makes this tensor when PyTorch loads it: _rebuild_tensor_v2, or _v3 for
// types without a typed storage.  Requires: dense row-major, of a type PyTorch can save.
Value make_dense_tensor(DType dtype, const std::vector<std::int64_t>& shape, StorageRef storage);

// Narrows a whole storage to the elements of `view`; the view's own storage is ignored.
void view_storage(ChunkData& storage, const TensorValue& view);

}  // namespace fsdp::formats
