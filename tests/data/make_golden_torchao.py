#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes golden/frameworks/torchao_*: optimizer states in 8 and 4 bits and float8 as torch.distributed.checkpoint saves them (gloo, CPU).

  python make_golden_torchao.py      with torch==2.11.0 and torchao==0.18.0; writes golden/SHA256SUMS again

One rank, and FSDP2 on two and three, where a state is a DTensor of torchao's class on ranks with enough elements, and a DTensor of plain
tensors on the others.  The truth is the output of PyTorch's dcp_to_torch_save.
"""
import os
import shutil
import sys
import tempfile
import warnings

warnings.simplefilter("ignore")
os.environ.update(CUDA_VISIBLE_DEVICES="", TORCH_CPP_LOG_LEVEL="ERROR")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [os.path.join(os.path.dirname(HERE), "support"), os.path.join(os.path.dirname(HERE), "interop")]

import torch

torch._dynamo.config.disable = True   # torchao's optimizers compile themselves
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard
from torchao.optim import AdamW4bit, AdamW8bit, AdamWFp8

ROOT = os.path.join(HERE, "golden", "frameworks")
KINDS = {"adamw8bit": AdamW8bit, "adamw4bit": AdamW4bit, "adamwfp8": AdamWFp8}
# World size, dtype, and rows of the two layers: three ranks have 66, 66 and 64 rows of the first, of which torchao quantizes only the last
# part.
CASES = [("adamw8bit", 1, torch.bfloat16, 64, 8), ("adamw8bit", 2, torch.float32, 128, 8), ("adamw4bit", 2, torch.float32, 128, 8),
         ("adamwfp8", 2, torch.float32, 128, 8), ("adamw8bit", 3, torch.float32, 196, 8)]


def worker(rank, world, kind, dtype, rows, more, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                      GLOO_SOCKET_IFNAME=os.environ.get("GLOO_SOCKET_IFNAME", "lo"))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(world)
    model = nn.Sequential(nn.Linear(64, rows), nn.Linear(rows, more, bias=False)).to(dtype)
    if world > 1:
        fully_shard(model)
    optimizer = KINDS[kind](model.parameters(), lr=1e-3)
    for _ in range(2):
        model(torch.randn(4, 64, dtype=dtype)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    weights, states = get_state_dict(model, optimizer)
    folder = os.path.join(ROOT, f"torchao_{kind}_w{world}")
    ckpt = os.path.join(folder, "ckpt")
    if rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
    dist.barrier()
    os.chdir(folder)   # so that no path of this machine is saved
    dcp.save({"optim": states, "bias": weights["0.bias"]}, checkpoint_id="ckpt")
    low = [k for k, s in states["state"].items() for v in s.values()
           if type(v._local_tensor if hasattr(v, "_local_tensor") else v).__name__.startswith("OptimState")]
    print(f"torchao_{kind}_w{world}, rank {rank}: {len(low)} states are torchao's", flush=True)
    if rank == 0:
        from make_frameworks import write_truth
        with tempfile.TemporaryDirectory() as tmp:
            dcp_to_torch_save(ckpt, os.path.join(tmp, "full.pt"))
            write_truth(folder, torch.load(os.path.join(tmp, "full.pt"), weights_only=False))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    from make_frameworks import free_port
    from make_golden_frameworks import compact
    from make_golden import sums
    for kind, world, dtype, rows, more in CASES:
        mp.start_processes(worker, args=(world, kind, dtype, rows, more, free_port()), nprocs=world, start_method="spawn")
        compact(os.path.join(ROOT, f"torchao_{kind}_w{world}"))
    sums()
