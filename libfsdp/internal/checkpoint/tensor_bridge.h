// SPDX-License-Identifier: Apache-2.0
// The only place where LibTorch's tensors and state dicts become those of formats/, and back.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "formats/base/dtype.h"
#include "formats/content/tensor_value.h"
#include "formats/pickle/value.h"
#include "libfsdp/state_value.h"

namespace fsdp {

// Throws: c10::Error naming the dtype where the other side has none like it.
formats::DType dtype_of(c10::ScalarType type);
c10::ScalarType scalar_type_of(formats::DType dtype);

// Whether the tensor's memory is what a checkpoint holds: on the CPU, dense and row-major.
bool is_host_memory(const at::Tensor& tensor);
// Requires: is_host_memory.  Lifetime: the tensor's.
std::span<std::byte> host_memory(const at::Tensor& tensor);

// A tensor's bytes as a checkpoint holds them: where they lie already, else a copy.
class HostBytes {
 public:
  // Lifetime: until the next call, and the tensor's.
  std::span<const std::byte> of(const at::Tensor& tensor);

 private:
  at::Tensor held_;
};

// A tensor of a state dict.
struct StateTensor {
  std::string key;
  at::Tensor local;                        // what this rank has of it
  const ShardedTensor* sharded = nullptr;  // null: it is whole

  at::IntArrayRef shape() const {  // of the whole tensor
    return sharded != nullptr ? at::IntArrayRef(sharded->layout.shape) : local.sizes();
  }
};
struct StateContent {
  formats::Value root;  // its tensors are references to `tensors` by number, see dcp/rank_writer.h
  // Tensors that are the same bytes, all of them, stand here once: tied weights stay tied.
  std::vector<StateTensor> tensors;
};
// Lifetime: the state dict outlives the result.
// Throws: c10::Error naming the key of a tensor that no checkpoint holds (sparse, quantized,
// nested, on the meta device), or of which `local` has not the shape that its layout says.
StateContent state_content(const StateDict& state);

// Gives the tensor that a dense tensor of a checkpoint is to become.
using TensorOf = std::function<at::Tensor(const formats::TensorValue& tensor)>;
// What has no counterpart here is left out (in lists and tuples: None) and noted in `left_out`, as
// "'<key>': a set has no counterpart here".  `key` is that of `value`.
StateValue state_value(const formats::Value& value, const std::string& key,
                       const TensorOf& tensor_of, std::vector<std::string>& left_out);

}  // namespace fsdp
