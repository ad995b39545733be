# SPDX-License-Identifier: Apache-2.0
"""torch_dist folders of small GPTs, by Megatron-Core itself: model, distributed optimizer and what is not sharded.

  python make_megatron.py OUT      needs torch 2.11, megatron-core 0.16 to 0.19; no GPU
"""
import os
import shutil
import sys

import megatron_cpu

# Ranks, tensor, pipeline and expert parallelism; sharding of the optimizer; layers stacked.
CASES = {
    "w1": (1, 1, 1, 1, False, "fully_reshardable", True),
    "w2_tp2": (2, 2, 1, 1, False, "fully_reshardable", True),
    "w2_pp2": (2, 1, 2, 1, False, "fully_reshardable", False),
    "w2_dp2_buckets": (2, 1, 1, 1, False, "dp_reshardable", True),
    "w4_tp2_pp2_buckets": (4, 2, 2, 1, False, "dp_reshardable", True),
    "w4_tp2_ep2_buckets": (4, 2, 1, 2, True, "dp_reshardable", True),
    "w2_ep2": (2, 1, 1, 2, True, "fully_reshardable", True),
    "w4_tp2_pp2": (4, 2, 2, 1, False, "fully_reshardable", True),
    "w4_tp2_ep2": (4, 2, 1, 2, True, "fully_reshardable", False),
}
# Elements that end a bucket.  These buckets end at multiples of 128 elements: Megatron-Core loses elements of others that are followed by
# one when it saves by parameters ("param range exceeds unpadded buffer").
BUCKET = 600


def make(rank, world, tp, pp, ep, experts, kind, homogeneous, folder, whole=None, change=None):
    """`whole`: another folder for the same state, fully_reshardable; `change`: called with the model before it is saved."""
    megatron_cpu.parallel(tp, pp, ep)
    config, gpt = megatron_cpu.model(tp, pp, ep, experts)
    _, optimizer = megatron_cpu.with_optimizer(config, gpt, bucket_size=BUCKET if kind == "dp_reshardable" else None)
    if change:
        change(gpt)
    megatron_cpu.save(gpt, optimizer, megatron_cpu.metadata(kind, homogeneous), folder)
    if whole:
        megatron_cpu.save(gpt, optimizer, megatron_cpu.metadata("fully_reshardable", homogeneous), whole)


def make_small(rank, world, folder):
    """A model without an optimizer, for tests that have no Python: a few KiB."""
    megatron_cpu.parallel(2, 1, 1)
    _, gpt = megatron_cpu.model(2, 1, 1, False)
    megatron_cpu.save(gpt, None, megatron_cpu.metadata("fully_reshardable"), folder)


def with_adapter(wrapped, rank):
    """A module that saves what it wraps and an adapter for it as Megatron-Bridge's AdapterWrapper and ParallelLinearAdapter do."""
    import torch
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.mlp import apply_swiglu_sharded_factory

    class WithAdapter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            how = {"config": wrapped.config, "init_method": wrapped.config.init_method, "bias": False}
            self.wrapped = wrapped
            if isinstance(wrapped, RowParallelLinear):
                self.linear_in = RowParallelLinear(wrapped.input_size, rank, input_is_parallel=True, skip_bias_add=True, **how)
            else:
                self.linear_in = ColumnParallelLinear(wrapped.input_size, rank, gather_output=True, **how)
            self.linear_out = ColumnParallelLinear(rank, wrapped.output_size, gather_output=False, **how)

        def sharded_state_dict(self, prefix="", sharded_offsets=(), metadata=None):
            out = self.wrapped.sharded_state_dict(prefix, sharded_offsets, metadata)
            out.update(self.linear_in.sharded_state_dict(f"{prefix}adapter.linear_in.", sharded_offsets, metadata))
            b = self.linear_out.sharded_state_dict(f"{prefix}adapter.linear_out.", sharded_offsets, metadata)
            key = f"{prefix}adapter.linear_out.weight"
            if "linear_fc1" in prefix:
                b[key] = apply_swiglu_sharded_factory(b[key], sharded_offsets)
            out.update(b)
            return out
    return WithAdapter()


def make_with_adapters(rank, world, ranks, folder):
    """A model with adapters of that rank for three linear modules of each layer, on two ranks."""
    megatron_cpu.parallel(2, 1, 1)
    _, gpt = megatron_cpu.model(2, 1, 1, False)
    for layer in gpt.decoder.layers:
        layer.self_attention.linear_proj = with_adapter(layer.self_attention.linear_proj, ranks)
        layer.mlp.linear_fc1 = with_adapter(layer.mlp.linear_fc1, ranks)
        layer.mlp.linear_fc2 = with_adapter(layer.mlp.linear_fc2, ranks)
    megatron_cpu.save(gpt.bfloat16(), None, megatron_cpu.metadata("fully_reshardable"), folder)


if __name__ == "__main__":
    for name, (world, *how) in CASES.items():
        if len(sys.argv) > 2 and name not in sys.argv[2:]:
            continue
        folder = os.path.join(sys.argv[1], name, "torch_dist")
        shutil.rmtree(folder, ignore_errors=True)
        megatron_cpu.run(world, make, *how, folder)
        print(name, sum(entry.stat().st_size for entry in os.scandir(folder)), flush=True)
