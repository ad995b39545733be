// SPDX-License-Identifier: Apache-2.0
// Reduces a number of every rank to one: losses to log, counts to add.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

namespace fsdp {

class ProcessGroup;

enum class ReduceKind { kMean, kSum };

// Collective.  Returns the mean or the sum of every rank's tensor, of one shape and dtype on all,
// as a new tensor.  Means of integers are floating-point.
at::Tensor reduce(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group,
                  ReduceKind kind = ReduceKind::kMean);

}  // namespace fsdp
