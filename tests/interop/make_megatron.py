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
    "w2_ep2": (2, 1, 1, 2, True, "fully_reshardable", True),
    "w4_tp2_pp2": (4, 2, 2, 1, False, "fully_reshardable", True),
    "w4_tp2_ep2": (4, 2, 1, 2, True, "fully_reshardable", False),
}


def make(rank, world, tp, pp, ep, experts, kind, homogeneous, folder):
    megatron_cpu.parallel(tp, pp, ep)
    config, gpt = megatron_cpu.model(tp, pp, ep, experts)
    _, optimizer = megatron_cpu.with_optimizer(config, gpt)
    megatron_cpu.save(gpt, optimizer, megatron_cpu.metadata(kind, homogeneous), folder)


def make_small(rank, world, folder):
    """A model without an optimizer, for tests that have no Python: a few KiB."""
    megatron_cpu.parallel(2, 1, 1)
    _, gpt = megatron_cpu.model(2, 1, 1, False)
    megatron_cpu.save(gpt, None, megatron_cpu.metadata("fully_reshardable"), folder)


if __name__ == "__main__":
    for name, (world, *how) in CASES.items():
        if len(sys.argv) > 2 and name not in sys.argv[2:]:
            continue
        folder = os.path.join(sys.argv[1], name, "torch_dist")
        shutil.rmtree(folder, ignore_errors=True)
        megatron_cpu.run(world, make, *how, folder)
        print(name, sum(entry.stat().st_size for entry in os.scandir(folder)), flush=True)
