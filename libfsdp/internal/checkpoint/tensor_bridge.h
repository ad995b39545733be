// SPDX-License-Identifier: Apache-2.0
// Converts LibTorch's tensors and state dicts to those of formats/, and back.  Nothing else does.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "formats/bytes/base/dtype.h"
#include "formats/containers/pickle/value.h"
#include "formats/state/content/tensor_value.h"
#include "libfsdp/state_value.h"

namespace fsdp::internal {

// Throws: c10::Error naming the dtype if the other side does not have it.
formats::DType dtype_of(c10::ScalarType type);
c10::ScalarType scalar_type_of(formats::DType dtype);

// Returns whether the memory is as a checkpoint holds it: on the CPU, dense and row-major.
bool is_host_memory(const at::Tensor& tensor);
// Requires: is_host_memory.  Lifetime: as the tensor.
std::span<std::byte> host_memory(const at::Tensor& tensor);

// Returns a tensor's bytes as a checkpoint holds them: its own memory if possible, else a copy.
// Lifetime: that of `held`, which is freed first.
std::span<const std::byte> host_bytes(const at::Tensor& tensor, at::Tensor& held);

// A tensor of a state dict.
struct StateTensor {
  std::string key;
  at::Tensor local;                        // this rank's share of it
  const ShardedTensor* sharded = nullptr;  // null: it is whole

  at::IntArrayRef shape() const {  // the shape of the whole tensor
    return sharded != nullptr ? at::IntArrayRef(sharded->layout.whole_shape()) : local.sizes();
  }
};
struct StateContent {
  formats::Value root;  // its tensors are references to `tensors` by number, see dcp/rank_writer.h
  // Whole tensors in the same memory are listed once: tied weights stay tied.
  std::vector<StateTensor> tensors;
};
// Lifetime: the state dict outlives the result.
// Throws: c10::Error naming the key of a tensor that checkpoints cannot hold (sparse, quantized,
// nested, on the meta device), or whose `local` does not have the shape that its layout says.
StateContent state_content(const StateDict& state);

// Returns nullopt for a key that is neither a text nor an integer.
std::optional<StateKey> state_key(const formats::Value& key);
// Returns the tensor that will hold a dense tensor of a checkpoint.
using TensorOf = std::function<at::Tensor(const formats::TensorValue& tensor)>;
// Leaves out values without a counterpart (in lists and tuples: None) and notes them in `left_out`,
// as "'<key>': a set has no counterpart here".  `key` is the key of `value`.
StateValue state_value(const formats::Value& value, const std::string& key,
                       const TensorOf& tensor_of, std::vector<std::string>& left_out);

}  // namespace fsdp::internal
