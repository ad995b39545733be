# SPDX-License-Identifier: Apache-2.0
"""One rank that trains the GPT of gpt.h with PyTorch and times its steps; train.py starts the ranks, as torchrun would.

  python train_step.py NAME=VALUE...          see DEFAULTS

Prints one line of JSON for each rank, like train_step.cpp; milliseconds are of a whole step, with the optimizer.
"""
import json
import os
import resource
import sys
import time
import warnings

warnings.simplefilter("ignore")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "parity"))

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.functional import cross_entropy

from models import Block

HEADS = 8
DEFAULTS = dict(width="64", layers="4", vocabulary="256", length="32", batch="2", steps="30", warmup="5",
                fused="1",                    # AdamW(fused=True); else what AdamW chooses by itself
                kind="fsdp1",                 # or fsdp2, unsharded
                strategy="full",              # or grad_op
                orig="0", forward_prefetch="0")


class GPT(nn.Module):
    def __init__(self, width, layers, vocabulary, length):
        super().__init__()
        self.emb, self.pos = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, HEADS) for _ in range(layers))
        self.ln, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        torch.manual_seed(1)
        with torch.no_grad():                 # like gpt.h, value by value
            for name, p in self.named_parameters():
                if p.dim() > 1:
                    p.normal_(0, 0.02)
                elif name.endswith("bias"):
                    p.zero_()

    def forward(self, x):
        x = self.emb(x) + self.pos(torch.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


def tokens(batch, length, vocabulary, step, rank):
    count = batch * (length + 1)
    places = torch.arange(count) + (step * 64 + rank) * count
    return (places * places % 7919 % vocabulary).view(batch, length + 1)


def sharded(model, settings):
    full = settings["strategy"] == "full"
    if settings["kind"] == "fsdp1":
        return FullyShardedDataParallel(
            model, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.device("cpu"),
            sharding_strategy=ShardingStrategy.FULL_SHARD if full else ShardingStrategy.SHARD_GRAD_OP,
            use_orig_params=settings["orig"] == "1", forward_prefetch=settings["forward_prefetch"] == "1")
    if settings["kind"] == "fsdp2":
        for block in model.blocks:
            fully_shard(block, reshard_after_forward=full)
        return fully_shard(model, reshard_after_forward=full)
    return model


def cpu_ms():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return (usage.ru_utime + usage.ru_stime) * 1e3


def main():
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    assert given.keys() <= DEFAULTS.keys(), f"unknown: {given.keys() - DEFAULTS.keys()}"
    settings = DEFAULTS | given
    width, layers, vocabulary, length, batch, steps, warmup = (
        int(settings[name]) for name in ("width", "layers", "vocabulary", "length", "batch", "steps", "warmup"))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = sharded(GPT(width, layers, vocabulary, length), settings)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2, fused=True if settings["fused"] == "1" else None)
    took, losses, cpu = [], [], 0
    for step in range(warmup + steps):
        data = tokens(batch, length, vocabulary, step, rank)
        if step == warmup:
            dist.barrier()
            cpu = cpu_ms()
        begin = time.perf_counter()
        logits = model(data[:, :-1])
        loss = cross_entropy(logits.flatten(0, 1), data[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step >= warmup:
            took.append((time.perf_counter() - begin) * 1e3)
        losses.append(loss.item())
    print(json.dumps({
        "rank": rank, "median_ms": sorted(took)[len(took) // 2], "min_ms": min(took), "cpu_ms": (cpu_ms() - cpu) / steps,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "first_loss": losses[0], "last_loss": losses[-1]}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
