# SPDX-License-Identifier: Apache-2.0
"""Saves a sharded model with AdamW state of about N gigabytes, by real PyTorch: FSDP2 on the CPU, two ranks or more, Gloo.

  python make_folder.py OUT N [RANKS]
"""
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

WIDTH = 1024
BYTES_OF_A_BLOCK = 8 * WIDTH * WIDTH * 4 * 3          # two matrices of 4 WIDTH x WIDTH; float32; weight and two moments


def block():
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))


def worker(rank, out, gigabytes, ranks):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{out}.store", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    count = round(gigabytes * 1e9 / BYTES_OF_A_BLOCK)
    with torch.device("meta"):
        model = nn.Sequential(*(block() for _ in range(count)))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with torch.no_grad():                              # only bytes matter here: no forward, random gradients
        for p in model.parameters():
            p.to_local().uniform_(-1, 1)
            p.grad = torch.empty_like(p)
            p.grad.to_local().uniform_(-1, 1)
    opt.step()
    opt.zero_grad(set_to_none=True)
    m, o = get_state_dict(model, opt)
    dcp.save({"model": m, "optimizer": o, "step": 1}, checkpoint_id=out)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    target = os.path.abspath(sys.argv[1])
    ranks = int(sys.argv[3]) if len(sys.argv) > 3 else 2
    mp.spawn(worker, args=(target, float(sys.argv[2]), ranks), nprocs=ranks)
    if os.path.exists(target + ".store"):
        os.remove(target + ".store")
