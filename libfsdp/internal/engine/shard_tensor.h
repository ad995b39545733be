// SPDX-License-Identifier: Apache-2.0
// Makes the tensor for an optimizer: every write moves its version, even through data().
//
// torch::optim writes through parameter.data(), which has a separate version counter in an ordinary
// tensor: a step between a forward and its backward would go unnoticed.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::internal {

// Shares the memory of `view`; has one version counter for itself and its data().
at::Tensor shard_tensor(const at::Tensor& view);

}  // namespace fsdp::internal
