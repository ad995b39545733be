// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/comm_hooks.h"

#include <memory>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>

#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/comm/errors.h"

namespace fsdp {
using namespace internal;
namespace {

using GroupPtr = std::shared_ptr<ProcessGroup>;

void divide(at::Tensor& tensor, double divisor) {
  if (divisor > 1) tensor.div_(divisor);
}

// Takes the mean; `sharded` is `unsharded` itself if the gradients stay whole.
void reduce_either(const GroupPtr& group, at::Tensor& unsharded, at::Tensor& sharded) {
  const double before = gradient_predivide_factor(group->size());
  divide(unsharded, before);
  if (sharded.is_same(unsharded))
    all_reduce(group, unsharded, ReduceOp::kSum, "all-reduce of a communication hook").wait();
  else
    reduce_scatter(group, sharded, unsharded, "reduce-scatter of a communication hook").wait();
  divide(sharded, group->size() / before);
}

}  // namespace

int gradient_predivide_factor(int world_size) {
  int factor = 1;
  while (world_size % factor == 0 && world_size > factor * factor) factor *= 2;
  return factor;
}

CommHook allreduce_hook() {
  return [](const GroupPtr& group, at::Tensor& unsharded, at::Tensor& sharded) {
    FSDP_CHECK(sharded.is_same(unsharded),
               "allreduce_hook: expected a module that is not sharded, found gradients to be "
               "scattered: register reduce_scatter_hook()");
    reduce_either(group, unsharded, sharded);
  };
}

CommHook reduce_scatter_hook() {
  return [](const GroupPtr& group, at::Tensor& unsharded, at::Tensor& sharded) {
    // In a group of one rank, whole gradients are right under every strategy.
    FSDP_CHECK(!sharded.is_same(unsharded) || group->size() == 1,
               "reduce_scatter_hook: expected a module that is sharded, found whole gradients: "
               "register allreduce_hook()");
    reduce_either(group, unsharded, sharded);
  };
}

CommHook fp16_compress_hook() {
  return compress_hook(at::kHalf, reduce_either);
}

CommHook bf16_compress_hook() {
  return compress_hook(at::kBFloat16, reduce_either);
}

CommHook compress_hook(c10::ScalarType dtype, CommHook inner) {
  FSDP_CHECK(inner, "compress_hook: expected a hook to wrap, found an empty one");
  return [dtype, inner = std::move(inner)](const GroupPtr& group, at::Tensor& unsharded,
                                           at::Tensor& sharded) {
    if (unsharded.scalar_type() == dtype) return inner(group, unsharded, sharded);
    at::Tensor low = unsharded.to(dtype);
    const bool is_whole = sharded.is_same(unsharded);
    at::Tensor result = is_whole ? low : at::empty_like(sharded, sharded.options().dtype(dtype));
    inner(group, low, result);
    sharded.copy_(is_whole ? low : result);
  };
}

}  // namespace fsdp
