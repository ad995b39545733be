#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes sharded checkpoints with the installed PyTorch (gloo, CPU), and the truth about each.

  python make_checkpoints.py OUT        OUT/<case>_w<ranks>/ckpt/ and OUT/<case>_w<ranks>/truth.json

The truth is the content that the same PyTorch reads back whole: dcp_to_torch_save, then torch.load.  See truth.py for its form; besides
  tensors       flattened key -> its value
  weights_only  whether PyTorch loads its own full file with weights_only=True
  allow         globals that must be allowed by name
"""
import json
import os
import sys
import tempfile
import time
import warnings

warnings.simplefilter("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [HERE, os.path.join(os.path.dirname(HERE), "support")]

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import models
import objects
import truth

ALLOW = {"own_class_w1": ["objects.Config"]}


def dtensors(world):
    line = init_device_mesh("cpu", (world,))
    torch.manual_seed(5)
    a, cube = torch.rand(7, 5), torch.rand(5, 3, 4)
    out = {
        "rows": distribute_tensor(a, line, [Shard(0)]), "columns": distribute_tensor(a, line, [Shard(1)]),
        "replicated": distribute_tensor(a, line, [Replicate()]), "middle": distribute_tensor(cube, line, [Shard(1)]),
        "last": distribute_tensor(cube, line, [Shard(2)]), "one_row": distribute_tensor(torch.rand(1, 4), line, [Shard(0)]),
        "no_rows": distribute_tensor(torch.empty(0, 4), line, [Shard(0)]), "vector": distribute_tensor(torch.arange(10), line, [Shard(0)]),
        "half": distribute_tensor(a.half(), line, [Shard(0)]), "bool": distribute_tensor(a > 0.5, line, [Shard(1)]),
        "complex": distribute_tensor(torch.complex(a, a), line, [Shard(0)]), "scalar": torch.tensor(1.0), "plain": a,
        "list": [distribute_tensor(a, line, [Shard(0)]), 1], "rank_free": "same",
    }
    if world == 4:
        grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("x", "y"))
        for name, placements in {"grid": [Shard(0), Shard(1)], "grid_t": [Shard(1), Shard(0)], "twice": [Shard(0), Shard(0)],
                                 "replicated_rows": [Replicate(), Shard(0)], "rows_replicated": [Shard(0), Replicate()]}.items():
            out[name] = distribute_tensor(a, grid, placements)
        out["cube"] = distribute_tensor(cube, grid, [Shard(0), Shard(2)])
    return out


def cases(rank, world):
    """Yields (name, state dict, how to save).  Every rank yields the same names in the same order."""
    from torch.distributed.checkpoint._extension import ZStandard
    m = models
    yield "fsdp1", m.fsdp1(rank, world, use_orig=False), {}
    yield "fsdp1_orig", m.fsdp1(rank, world, use_orig=True), {}
    yield "fsdp2", m.fsdp2(rank, world), {}
    yield "dtensors", dtensors(world), {}
    if world == 1:
        yield "dtypes", objects.every_dtype(), {}
        yield "tensors", objects.tensors(), {}
        yield "values", objects.values(), {}
        yield "values_threads", objects.values(), dict(thread_count=3)
        yield "beyond_weights_only", objects.values_beyond_weights_only(), {}
        yield "own_class", objects.own_class(), {}
        yield "plain_training", objects.plain_training(), {}
        yield "not_flattened", objects.plain_training(), dict(planner=DefaultSavePlanner(flatten_state_dict=False))
    if world == 2:
        yield "fsdp1_tied", m.fsdp1(rank, world, use_orig=True, tied=True), {}
        yield "fsdp1_frozen", m.fsdp1(rank, world, use_orig=True, frozen=True), {}
        yield "fsdp1_mixed", m.fsdp1(rank, world, use_orig=True, half=True), {}
        yield "fsdp1_no_shard", m.fsdp1(rank, world, use_orig=True, strategy=ShardingStrategy.NO_SHARD), {}
        yield "fsdp1_mesh", m.fsdp1(rank, world, use_orig=True, mesh=init_device_mesh("cpu", (world,))), {}
        yield "fsdp2_tied", m.fsdp2(rank, world, tied=True), {}
        yield "fsdp2_frozen", m.fsdp2(rank, world, frozen=True), {}
        yield "fsdp2_bf16", m.fsdp2(rank, world, dtype=torch.bfloat16), {}
        yield "fsdp2_mixed", m.fsdp2(rank, world, half=True), {}
        yield "fsdp2_flat_optim", m.fsdp2(rank, world, flat=True), {}
        yield "fsdp2_momentum", m.fsdp2(rank, world, optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)), {}
        yield "fsdp2_threads", m.fsdp2(rank, world), dict(thread_count=3)
        yield "fsdp2_many_files", m.fsdp2(rank, world), dict(single_file_per_rank=False)
        yield "fsdp2_zstd", m.fsdp2(rank, world), dict(_extensions=[ZStandard()])
        yield "fsdp2_async", m.fsdp2(rank, world), dict(asynchronous=True)
        yield "values", objects.values(), {}
    if world == 3:
        yield "fsdp1_frozen", m.fsdp1(rank, world, use_orig=True, frozen=True), {}
        yield "fsdp2_flat_optim", m.fsdp2(rank, world, flat=True), {}
        yield "fsdp2_wide", m.fsdp2(rank, world, width=2, hidden=200), {}
    if world == 4:
        pairs = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        yield "fsdp1_hsdp", m.fsdp1(rank, world, use_orig=True, strategy=ShardingStrategy.HYBRID_SHARD, mesh=pairs), {}
        yield "fsdp2_hsdp", m.fsdp2(rank, world, mesh=pairs), {}
        yield "fsdp2_tp", m.tensor_and_data_parallel(rank, world, init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))), {}
        yield "fsdp2_async_threads", m.fsdp2(rank, world), dict(asynchronous=True, thread_count=2)


def save(out, name, state, planner=None, asynchronous=False, **writer):
    writer = dcp.FileSystemWriter(os.path.join(out, name, "ckpt"), **writer)
    if asynchronous:
        dcp.async_save(state, storage_writer=writer, planner=planner).result()
    else:
        dcp.save(state, storage_writer=writer, planner=planner)


def worker(rank, world, out):
    torch.set_num_threads(1)
    os.chdir(out)
    dist.init_process_group("gloo", init_method=f"file://{out}/.store{world}", rank=rank, world_size=world)
    for name, state, how in cases(rank, world):
        save("", f"{name}_w{world}", state, **how)
        dist.barrier()
    dist.destroy_process_group()


def at_path(obj, path):
    for step in path:
        obj = obj[step]
    return obj


def write_truth(folder):
    ckpt = os.path.join(folder, "ckpt")
    with tempfile.TemporaryDirectory() as tmp:
        full = os.path.join(tmp, "full.pt")
        dcp_to_torch_save(ckpt, full)
        obj = torch.load(full, weights_only=False)
        try:
            torch.load(full, weights_only=True)
            safe = True
        except Exception:
            safe = False
    meta = dcp.FileSystemReader(ckpt).read_metadata()
    paths = meta.planner_data or {}
    tensors = {k: truth.describe(at_path(obj, paths.get(k, (k,)))) for k, v in meta.state_dict_metadata.items() if hasattr(v, "chunks")}
    doc = {"torch": torch.__version__.split("+")[0], "tree": truth.describe(obj), "items": truth.flat(obj), "tensors": tensors,
           "weights_only": safe, "allow": ALLOW.get(os.path.basename(folder), [])}
    with open(os.path.join(folder, "truth.json"), "w") as f:
        json.dump(doc, f, indent=1, ensure_ascii=False)


def main():
    out = os.path.abspath(sys.argv[1])
    os.makedirs(out)
    for world in 1, 2, 3, 4:
        begin = time.time()
        mp.spawn(worker, args=(world, out), nprocs=world)
        os.remove(f"{out}/.store{world}") if os.path.exists(f"{out}/.store{world}") else None
        print(f"{world} ranks: {time.time() - begin:.1f} s", flush=True)
    begin = time.time()
    names = sorted(os.listdir(out))
    for name in names:
        write_truth(os.path.join(out, name))
    print(f"{len(names)} checkpoints; their truth: {time.time() - begin:.1f} s")


if __name__ == "__main__":
    main()
