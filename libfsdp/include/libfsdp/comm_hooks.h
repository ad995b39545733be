// SPDX-License-Identifier: Apache-2.0
// Ready-made reductions of gradients for ShardedModule::register_comm_hook: those of PyTorch's
// torch.distributed.algorithms._comm_hooks.default_hooks.
//
// All take the mean over the ranks in two divisions, one before the sum and one after it, so that
// neither large sums overflow nor small gradients vanish in 16-bit dtypes.
#pragma once

#include "libfsdp/options.h"

namespace fsdp {

// Returns the divisor of gradients before they are added: a power of two near the square root of
// the number of ranks.  The sum is divided by the remaining factor, which may be a fraction.
int gradient_predivide_factor(int world_size);

// Returns the hook for ShardingStrategy::kNoShard.
CommHook allreduce_hook();
// Returns the hook for the strategies that shard.
CommHook reduce_scatter_hook();
// Returns a hook for any strategy: reduces in float16 or bfloat16, half the bytes of float32.
// Gradients are cast before it and back after the second division.
CommHook fp16_compress_hook();
CommHook bf16_compress_hook();
// Wraps a custom hook: `inner` sees gradients of dtype `dtype`.
CommHook compress_hook(c10::ScalarType dtype, CommHook inner);

}  // namespace fsdp
