// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/reduce.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/comm/devices.h"

namespace fsdp {
using namespace internal;

at::Tensor reduce(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group,
                  ReduceKind kind) {
  const at::NoGradGuard no_grad;
  const c10::Device device = collective_device(*group);
  at::Tensor result = tensor.detach().clone(at::MemoryFormat::Contiguous);
  if (!is_host(device)) result = result.to(device);
  all_reduce(group, result, ReduceOp::kSum, "reduce").wait();
  if (kind == ReduceKind::kMean) result = result / group->size();
  return result.to(tensor.device());
}

}  // namespace fsdp
