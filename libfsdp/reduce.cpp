// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/reduce.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "libfsdp/internal/comm/collectives.h"

namespace fsdp {
using namespace internal;

at::Tensor reduce(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group,
                  ReduceKind kind) {
  const at::NoGradGuard no_grad;
  at::Tensor result = tensor.detach().clone(at::MemoryFormat::Contiguous);
  all_reduce(group, result, ReduceOp::kSum, "reduce").wait();
  return kind == ReduceKind::kMean ? result / group->size() : result;
}

}  // namespace fsdp
