// SPDX-License-Identifier: Apache-2.0
// Reduces numbers over all ranks: losses to log, counts to add.
#pragma once

#include <memory>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace fsdp {

class ProcessGroup;

enum class ReduceKind { kMean, kSum, kProduct, kMin, kMax, kBitwiseAnd, kBitwiseOr, kBitwiseXor };

// Returns the kind with this name in Lightning and torch.distributed, in upper or lower case:
// "mean", "avg", "sum", "product", "min", "max", "band", "bor", "bxor".
// Throws: c10::Error for another name.
ReduceKind reduce_kind(std::string_view name);

// Collective.  Returns the mean, sum, ... of every rank's tensor, of one shape and dtype on all, as
// a new tensor.  Means of integers are floating-point.
at::Tensor reduce(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group,
                  ReduceKind kind = ReduceKind::kMean);

}  // namespace fsdp
