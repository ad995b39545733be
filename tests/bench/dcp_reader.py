#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads of torch.distributed.checkpoint by PyTorch's reader and by fsdp_ckpt.torch.StorageReader, side by side.

  python dcp_reader.py [--mebibytes 512] [--repeat 5] [--ranks 1 2 4]     with the native part of fsdp_ckpt on PYTHONPATH

A folder that four ranks saved is loaded from the page cache into tensors that are cut along rows.  Prints, for each number of ranks, the
median of the seconds and of the processor's seconds of all ranks, and whether both gave the same bits.
"""
import argparse
import os
import statistics
import tempfile
import time
import warnings

warnings.simplefilter("ignore")
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import fsdp_ckpt.torch

TENSORS = 32


def tensors(rows, mesh, make):
    return {f"layers.{i}.weight": distribute_tensor(make(rows, 1024, i), mesh, [Shard(0)]) for i in range(TENSORS)}


def numbers(rows, columns, seed):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def rank_main(rank, count, place, rows, repeat, results):
    dist.init_process_group("gloo", init_method=f"file://{place}/store{count}{repeat}", rank=rank, world_size=count)
    os.environ["LOCAL_WORLD_SIZE"] = str(count)
    mesh = init_device_mesh("cpu", (count,))
    if repeat == 0:
        dcp.save(tensors(rows, mesh, numbers), checkpoint_id=f"{place}/ckpt")
    took = {"PyTorch": [], "fsdp_ckpt": []}
    loaded = {}
    for turn in range(repeat + 1 if repeat else 0):
        for name in took:
            state = tensors(rows, mesh, lambda rows, columns, _: torch.zeros(rows, columns))
            reader = dcp.FileSystemReader(f"{place}/ckpt") if name == "PyTorch" else fsdp_ckpt.torch.StorageReader(
                f"{place}/ckpt", process_group=dist.group.WORLD)
            dist.barrier()
            begin, cpu = time.perf_counter(), time.process_time()
            dcp.load(state, storage_reader=reader)
            dist.barrier()
            used = torch.tensor(time.process_time() - cpu)
            dist.all_reduce(used)
            if turn:   # the first one fills the page cache
                took[name].append((time.perf_counter() - begin, float(used)))
            loaded[name] = state
    same = all(torch.equal(loaded["PyTorch"][key].to_local(), loaded["fsdp_ckpt"][key].to_local()) for key in loaded.get("PyTorch", ()))
    if rank == 0 and repeat:
        results.put((took, same))
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mebibytes", type=int, default=512)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    arguments = parser.parse_args()
    rows = arguments.mebibytes * 1024 * 1024 // 4 // 1024 // TENSORS
    results = torch.multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as place:
        torch.multiprocessing.spawn(rank_main, (4, place, rows, 0, results), nprocs=4)
        print("ranks  reader     seconds  processor's seconds")
        for count in arguments.ranks:
            torch.multiprocessing.spawn(rank_main, (count, place, rows, arguments.repeat, results), nprocs=count)
            took, same = results.get()
            for name, pairs in took.items():
                print(f"{count:5}  {name:9}  {statistics.median(one for one, _ in pairs):7.3f}  {statistics.median(one for _, one in pairs):7.3f}")
            if not same:
                raise SystemExit("the readers gave other bits")


if __name__ == "__main__":
    main()
