// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/detail/forward_inputs.h"

#include <algorithm>
#include <cstddef>

#include <ATen/Functions.h>

namespace fsdp::internal {

at::Tensor prepared_tensor(const at::Tensor& tensor, const InputCast& cast) {
  if (!tensor.defined()) return tensor;
  at::Tensor result = tensor;
  if (cast.device && result.device() != *cast.device)
    result = result.to(*cast.device, /*non_blocking=*/true);
  // Not a detached copy: a loss may want the gradient of an input.
  if (cast.dtype && result.is_floating_point()) result = result.to(*cast.dtype);
  return result;
}

const at::Tensor& PreparedTensors::original_of(const at::Tensor& tensor, std::size_t place) const {
  if (place < after_.size() && after_[place].is_same(tensor)) return before_[place];
  const auto found = std::find_if(after_.begin(), after_.end(), [&](const at::Tensor& prepared) {
    return prepared.is_same(tensor);
  });
  return found == after_.end() ? tensor : before_[static_cast<std::size_t>(found - after_.begin())];
}

}  // namespace fsdp::internal
