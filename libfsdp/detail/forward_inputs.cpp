// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/detail/forward_inputs.h"

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

}  // namespace fsdp::internal
