#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the output of adamw_steps, bit by bit, with PyTorch's AdamW(fused=True)."""
import struct
import subprocess
import sys

import torch


def values(numel, seed, dtype):
    return ((torch.arange(numel) * 7919 + seed * 104729) % 255 - 127).double().div(64).to(dtype)


def lines():
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for amsgrad in (False, True):
            parameters = [values(n, n, dtype) for n in (1, 7, 64, 1003)]
            optimizer = torch.optim.AdamW(
                parameters, lr=0.01, weight_decay=0.1, betas=(0.8, 0.95), amsgrad=amsgrad, fused=True)
            for step in range(1, 11):
                for parameter in parameters:
                    parameter.grad = values(parameter.numel(), 1000 * step, dtype)
                optimizer.step()
                yield dtype, amsgrad, step, [x for p in parameters for x in p.double().tolist()]


def main():
    torch.set_num_threads(1)
    printed = subprocess.run([sys.argv[1]], check=True, capture_output=True, text=True).stdout.splitlines()
    expected = list(lines())
    if len(printed) != len(expected):
        sys.exit(f"expected {len(expected)} steps, found {len(printed)}")
    for (dtype, amsgrad, step, wanted), line in zip(expected, printed):
        found = [struct.unpack("<d", struct.pack("<Q", int(word, 16)))[0] for word in line.split()]
        if found != wanted:
            worst = max(abs(a - b) for a, b in zip(found, wanted))
            sys.exit(f"{dtype}, amsgrad {amsgrad}, step {step}: off by up to {worst}")
    print(f"{len(expected)} steps, the same bits")


main()
