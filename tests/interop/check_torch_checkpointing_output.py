#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that torch_checkpointing itself goes on from folders that the tool wrote as from its own.

  python check_torch_checkpointing_output.py CORPUS --tool PATH      CORPUS is the output of make_frameworks.py
"""
import argparse
import os
import subprocess
import sys
import tempfile
import warnings

warnings.simplefilter("ignore")
os.environ.update(CUDA_VISIBLE_DEVICES="", TORCH_CPP_LOG_LEVEL="ERROR")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [HERE, os.path.join(os.path.dirname(HERE), "support")]

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import make_frameworks as made
import tried
from ranks import run_ranks

ITEMS = ("model", "optimizer", "average")


def zeroed(x):
    if isinstance(x, torch.Tensor):
        return x.detach().zero_()
    if isinstance(x, dict):
        return {k: zeroed(v) for k, v in x.items()}
    return type(x)(zeroed(v) for v in x) if isinstance(x, (list, tuple)) else x


def resumed(path, mesh):
    """Returns what is loaded into an FSDP2 model that lost its weights, whole, and the weights after one step from there."""
    import torch_checkpointing as tc
    from torch_checkpointing.default_resharder import DefaultResharder
    torch.manual_seed(11)
    net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 3))
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    net(torch.randn(4, 5)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    state = {"model": dict(net.state_dict()), "optimizer": optimizer.state_dict(), "average": {"of": [p.detach() * 1 for p in list(net.parameters())[:3]]}}
    zeroed(state)
    manager = made.torch_checkpointing_manager({name: tc.ItemSpec(resharder=DefaultResharder()) for name in ITEMS})
    loaded = manager.load(path, {**state, "step": None, "train": None}, strict=True)
    manager.close()
    optimizer.load_state_dict(loaded["optimizer"])
    whole = made.full({name: loaded[name] for name in (*ITEMS, "step", "train")})
    torch.manual_seed(12)
    net(torch.randn(4, 5)).square().mean().backward()
    optimizer.step()
    return whole, made.full(dict(net.state_dict()))


def go_on(rank, world, folders, own):
    """In a process of each rank: from each folder training goes on as from the package's own."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
    want = made.truth.describe(list(resumed(own, mesh)))
    for folder in folders:
        lines = made.truth.diff(want, made.truth.describe(list(resumed(folder, mesh))))
        assert not lines, f"{folder} on {world} ranks: " + "\n  ".join(lines[:10])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("corpus")
    ap.add_argument("--tool", required=True)
    args = ap.parse_args()
    own = os.path.join(os.path.abspath(args.corpus), "torch_checkpointing_w3", "ckpt")

    def run(*words):
        subprocess.run([args.tool, *map(str, words)], check=True, stdout=subprocess.DEVNULL)

    with tempfile.TemporaryDirectory() as tmp:
        whole = os.path.join(tmp, "whole.pt")
        run("consolidate", own, whole)
        folders = []
        for world in (1, 2, 3, 5):
            out = os.path.join(tmp, f"on_{world}")
            run("convert", own if world > 2 else whole, out, "--to", "torch-checkpointing", "--world-size", world)
            run("verify", out)
            run("diff", own, out)
            back = os.path.join(tmp, f"back_{world}.pt")
            run("consolidate", out, back)
            lines = made.truth.diff(made.truth.describe(torch.load(whole)), made.truth.describe(torch.load(back)))
            # The items without tensors stand behind the others.
            lines = [line for line in lines if "order of keys" not in line]
            assert not lines, "\n  ".join(lines[:10])
            assert sorted(os.listdir(out)) == sorted([f"{item}_{rank}.pt" for item in (*ITEMS, "step", "train", "config") for rank in range(world)] + ["metadata.pkl"])
            folders.append(out)
        print("PASS  written, verified and read back", flush=True)
        for world in (1, 2, 3):
            # Items without tensors are read from this rank's own file, here as in the package's folders.
            fitting = [f for f, ranks in zip(folders, (1, 2, 3, 5)) if ranks >= world]
            run_ranks(world, go_on, fitting, own)
            print(f"PASS  {world} ranks go on as from a folder of the package's own", flush=True)
        tried.record("torch_checkpointing", "`torch.save` items", "convert, verify, diff, consolidate", "to 1, 2, 3 and 5 ranks; it trains on from there as from its own")


if __name__ == "__main__":
    main()
