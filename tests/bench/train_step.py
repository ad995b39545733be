# SPDX-License-Identifier: Apache-2.0
"""Ranks that train the GPT of gpt.h with PyTorch and time its steps; train.py starts the ranks, as torchrun would.

  python train_step.py NAME=VALUE... [-- NAME=VALUE...]...          see DEFAULTS

Trains once for each group of settings; device and backend are those of the first.  Prints one line of JSON for each training and rank, like
train_step.cpp; milliseconds are of a whole step, with the optimizer.
"""
import contextlib
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
from torch.autograd import DeviceType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.functional import cross_entropy

from models import Block

HEADS = 8
DEFAULTS = dict(width="64", layers="4", vocabulary="256", length="32", batch="2", steps="30", warmup="5",
                fused="1",                    # AdamW(fused=True); else what AdamW chooses by itself
                kind="fsdp1",                 # or fsdp2, unsharded
                strategy="full",              # or grad_op
                orig="0", forward_prefetch="0",
                bf16="0",                     # parameters and activations in bfloat16; unsharded: autocast
                device="cpu",                 # or cuda
                backend="")                   # empty: that of the device


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
        x = self.emb(x) + self.pos(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


def tokens(batch, length, vocabulary, step, rank):
    count = batch * (length + 1)
    places = torch.arange(count) + (step * 64 + rank) * count
    return (places * places % 7919 % vocabulary).view(batch, length + 1)


def sharded(model, settings, device):
    full, low = settings["strategy"] == "full", settings["bf16"] == "1"
    if settings["kind"] == "fsdp1":
        return FullyShardedDataParallel(
            model, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=device,
            sharding_strategy=ShardingStrategy.FULL_SHARD if full else ShardingStrategy.SHARD_GRAD_OP,
            mixed_precision=MixedPrecision(torch.bfloat16, torch.float32) if low else None,
            use_orig_params=settings["orig"] == "1", forward_prefetch=settings["forward_prefetch"] == "1")
    if settings["kind"] == "fsdp2":
        how = dict(mesh=init_device_mesh(device.type, (dist.get_world_size(),)), reshard_after_forward=full,
                   mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32) if low else MixedPrecisionPolicy())
        for block in model.blocks:
            fully_shard(block, **how)
        return fully_shard(model, **how)
    return model


def cpu_ms():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return (usage.ru_utime + usage.ru_stime) * 1e3


def busy(events):
    """(milliseconds in which the device had at least one kernel or copy to do, how many)"""
    spans = sorted((e.start_ns(), e.start_ns() + e.duration_ns()) for e in events if e.device_type() == DeviceType.CUDA)
    total = until = 0
    for begin, end in spans:
        if end > until:
            total, until = total + end - max(begin, until), end
    return total / 1e6, len(spans)


def run(settings, device):
    width, layers, vocabulary, length, batch, steps, warmup = (
        int(settings[name]) for name in ("width", "layers", "vocabulary", "length", "batch", "steps", "warmup"))
    rank, on_gpu = dist.get_rank(), device.type == "cuda"
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    if on_gpu:
        torch.cuda.empty_cache()
    with device:                              # values are drawn where the model computes
        model = GPT(width, layers, vocabulary, length)
    model = sharded(model, settings, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2, fused=True if settings["fused"] == "1" else None)
    low = settings["bf16"] == "1" and settings["kind"] == "unsharded"

    def step_of(data):
        with torch.autocast(device.type, torch.bfloat16) if low else contextlib.nullcontext():
            logits = model(data[:, :-1])
        loss = cross_entropy(logits.flatten(0, 1).float(), data[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    took, issued, losses, cpu, before, device_mib, allocations = [], [], [], 0, 0, 0, 0
    count = (lambda: torch.cuda.memory_stats()["allocation.all.allocated"]) if on_gpu else lambda: 0
    for step in range(warmup + steps):
        data = tokens(batch, length, vocabulary, step, rank).to(device)
        wait()
        if step == warmup:
            dist.barrier()
            if on_gpu:
                wait()
                torch.cuda.reset_peak_memory_stats()
            before = count()
            cpu = cpu_ms()
        begin = time.perf_counter()
        loss = step_of(data)
        host = time.perf_counter() - begin
        wait()
        if step >= warmup:
            took.append((time.perf_counter() - begin) * 1e3)
            issued.append(host * 1e3)
        losses.append(loss.item())
    cpu, allocations = (cpu_ms() - cpu) / steps, (count() - before) / steps
    device_ms = kernels = 0
    if on_gpu:
        device_mib = torch.cuda.max_memory_allocated() / (1 << 20)
        data = tokens(batch, length, vocabulary, warmup + steps, rank).to(device)
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            step_of(data)
            wait()
        device_ms, kernels = busy(profile.profiler.kineto_results.events())
    median = lambda values: sorted(values)[len(values) // 2]
    print(json.dumps({
        "rank": rank, "median_ms": median(took), "min_ms": min(took), "host_ms": median(issued), "cpu_ms": cpu,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "device_mib": device_mib, "device_ms": device_ms, "kernels": kernels,
        "allocations": allocations, "first_loss": losses[0], "last_loss": losses[-1]}), flush=True)


def main():
    groups = [[]]
    for argument in sys.argv[1:]:
        if argument == "--":
            groups.append([])
        else:
            groups[-1].append(argument)
    runs = [dict(argument.split("=", 1) for argument in group) for group in groups]
    for given in runs:
        assert given.keys() <= DEFAULTS.keys(), f"unknown: {given.keys() - DEFAULTS.keys()}"
    first = DEFAULTS | runs[0]
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if first["device"] == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group(first["backend"] or ("nccl" if device.type == "cuda" else "gloo"))
    failed = False
    for given in runs:
        try:
            run(DEFAULTS | given, device)
        except Exception as error:            # the next training may have other sizes
            failed = True
            print(error, file=sys.stderr)
            print(json.dumps({"rank": dist.get_rank(), "error": str(error).split("\n")[0]}), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(2 if failed else 0)


if __name__ == "__main__":
    main()
