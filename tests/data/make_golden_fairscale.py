#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes golden/frameworks/fairscale_*: shards as FairScale's FSDP saves them (gloo, CPU), joined by its consolidate_shard_weights.

  python make_golden_fairscale.py      with torch==2.11.0 and fairscale==0.4.13; writes golden/SHA256SUMS again

The truth is what consolidate_shard_weights gives; tied names of units before the last, which it loses, are those of the whole model's
state_dict(), with which everything else is compared too.
"""
import os
import shutil
import sys
import types
import warnings

warnings.simplefilter("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [os.path.join(os.path.dirname(HERE), "support"), os.path.join(os.path.dirname(HERE), "interop")]

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

ROOT = os.path.join(HERE, "golden", "frameworks")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 7)


def wrapped(module, group, **how):
    from fairscale.nn import FullyShardedDataParallel
    return FullyShardedDataParallel(module, compute_device=torch.device("cpu"), process_group=group, process_group_reduce_scatter=group, **how)


class Net(nn.Module):
    """Tied weights, a unit in a unit, one of a single element, buffers; elements that no number of ranks divides."""

    def __init__(self, group, own, **how):
        super().__init__()
        self.inp = nn.Linear(5, 7)
        self.again = nn.Linear(5, 7)
        self.again.weight = self.inp.weight
        self.block = Block()
        self.block.down = wrapped(self.block.down, group, **how)
        self.block = wrapped(self.block, group, **how)
        self.scale = nn.Module()
        self.scale.one = nn.Parameter(torch.tensor([3.0]))
        self.scale = wrapped(self.scale, group, **how)
        if own is not None:   # each rank's own expert, which is rank 0's in what is joined
            self.expert = wrapped(nn.Linear(2, 2), own, no_broadcast_optim_state=True, **how)
        self.register_buffer("seen", torch.arange(4))


def worker(rank, world, case, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME=os.environ.get("GLOO_SOCKET_IFNAME", "lo"))
    torch.set_num_threads(1)
    torch.cuda.synchronize = lambda *_: None   # it waits for a GPU that there is none of
    torch.cuda.current_stream = lambda *_: types.SimpleNamespace(wait_stream=lambda _: None)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    from fairscale.nn import FullyShardedDataParallel
    from make_frameworks import write_truth
    everybody = dist.new_group(list(range(world)))
    alone = [dist.new_group([r]) for r in range(world)][rank]
    torch.manual_seed(world)
    how = {"flatten_parameters": False} if case == "unflattened" else {}
    model = wrapped(Net(everybody, alone if case == "trainer" else None, **how), everybody, **how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()
    weights, meta = model.local_state_dict(), model.local_metadata_dict()
    extra = {"epoch": 3, "train_iterator": {"shuffle": True, "offsets": (1, 2)}}
    if case == "trainer":   # as fairseq and metaseq name them
        files = {f"checkpoint_last-shard{rank}.pt": {"model": weights, "shard_metadata": meta, "extra_state": extra,
                                                     "last_optimizer_state": optimizer.state_dict()}}
    elif case == "unflattened":   # weights and metadata each on their own
        files = {f"weights_rank{rank}.pth": weights, f"meta_rank{rank}.pth": meta}
    else:
        files = {f"shard_{rank}.pt": {"weights": weights, "meta": meta}}
    folder = os.path.join(ROOT, f"fairscale_{case}_w{world}")
    ckpt = os.path.join(folder, "ckpt")
    if rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(ckpt)
    dist.barrier()
    for name, obj in files.items():
        torch.save(obj, os.path.join(ckpt, name))
    gathered = [None] * world
    dist.all_gather_object(gathered, (weights, meta))
    for m in model.modules():
        if isinstance(m, FullyShardedDataParallel):
            m._streams["all_gather"] = None
    whole = model.state_dict()
    if rank == 0:
        joined = FullyShardedDataParallel.consolidate_shard_weights(*map(list, zip(*gathered)))
        assert all(torch.equal(joined[k], whole[k]) for k in joined), [k for k in joined if not torch.equal(joined[k], whole[k])]
        lost = {k: whole[k] for k in whole if k not in joined}
        assert set(lost) <= {"again.weight"}, set(lost)
        lost = lost if case != "unflattened" else {}   # which no metadata name
        buffers = set(meta["buffer_names"])
        full = {k: v.clone() for k, v in joined.items() if k not in buffers}
        full.update({k: full["inp.weight"] for k in lost})
        full.update({k: joined[k].clone() for k in meta["buffer_names"]})
        if case == "trainer":
            write_truth(folder, {"model": full, "extra_state": extra}, warnings=["EXTRA_FILE", "RANK"])
        else:
            write_truth(folder, full, warnings=["EXTRA_FILE"] if case == "unflattened" else [])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    from make_frameworks import free_port
    from make_golden_frameworks import compact
    from make_golden import sums
    for case, world in ("nested", 2), ("trainer", 3), ("unflattened", 3):
        mp.start_processes(worker, args=(world, case, free_port()), nprocs=world, start_method="spawn")
        compact(os.path.join(ROOT, f"fairscale_{case}_w{world}"))
        print(f"fairscale_{case}_w{world}", flush=True)
    sums()
