#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole models into torch tensors: by safetensors and torch.load, and by fsdp_ckpt.open(path).load(), side by side in one process.

  python load_tensors.py [--mebibytes 512] [--repeat 5]     with the native part of fsdp_ckpt on PYTHONPATH, and safetensors installed

Files lie in the page cache.  A load ends when a byte of every page was read, since others map files and read later: what is mapped changes
with the file, what is copied or read does not.  Prints the least and the median of the seconds, and the median of the processor's seconds,
and stops if the bits differ.
"""
import argparse
import os
import statistics
import tempfile
import time

import torch
from safetensors.torch import load_file, save_file

import fsdp_ckpt

TENSORS = 64
PAGE = 4096


def touched(state):
    for tensor in state.values():
        tensor.view(torch.uint8).flatten()[::PAGE].sum()
    return state


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mebibytes", type=int, default=512)
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    rows = max(arguments.mebibytes * 1024 * 1024 // 2 // 1024 // TENSORS, 1)
    state = {f"layers.{i}.weight": torch.randn(rows, 1024).to(torch.bfloat16) for i in range(TENSORS)}
    with tempfile.TemporaryDirectory() as place:
        tensors, archive = os.path.join(place, "model.safetensors"), os.path.join(place, "model.pt")
        save_file(state, tensors)
        torch.save(state, archive)
        ways = {"safetensors: load_file, mapped": lambda: load_file(tensors),
                "safetensors: load_file, copied": lambda: {key: tensor.clone() for key, tensor in load_file(tensors).items()},
                "safetensors: fsdp_ckpt": lambda: fsdp_ckpt.open(tensors).load(),
                "torch.save: torch.load": lambda: torch.load(archive, weights_only=True),
                "torch.save: torch.load, mapped": lambda: torch.load(archive, weights_only=True, mmap=True),
                "torch.save: fsdp_ckpt, checksums compared": lambda: fsdp_ckpt.open(archive).load(),
                "torch.save: fsdp_ckpt, verify=False": lambda: fsdp_ckpt.open(archive).load(verify=False)}
        took = {name: [] for name in ways}
        for turn in range(arguments.repeat + 1):
            for name, way in ways.items():
                begin, cpu = time.perf_counter(), time.process_time()
                loaded = touched(way())
                if turn:   # the first one fills the page cache
                    took[name].append((time.perf_counter() - begin, time.process_time() - cpu))
                elif any(not torch.equal(loaded[key], tensor) for key, tensor in state.items()):
                    raise SystemExit(f"{name}: other bits")
                del loaded
        for name, pairs in took.items():
            seconds = [one for one, _ in pairs]
            print(f"{name:42}  {min(seconds):7.3f}  {statistics.median(seconds):7.3f}  {statistics.median(one for _, one in pairs):7.3f}")


if __name__ == "__main__":
    main()
