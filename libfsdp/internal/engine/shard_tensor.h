// SPDX-License-Identifier: Apache-2.0
// What an optimizer gets: a tensor whose version moves with every write, through data() too.
//
// torch::optim writes through parameter.data(), which in an ordinary tensor counts versions for
// itself: nobody could tell that a step lay between a forward and its backward.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp {

// Shares the memory of `view`; counts versions for itself and for what data() gives.
at::Tensor shard_tensor(const at::Tensor& view);

}  // namespace fsdp
