#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the cases of cases.py with the installed PyTorch's FSDP1 (gloo, CPU), for parity_test.cpp to compare with.

  python reference.py OUT [--only MODEL] [--world N]

OUT/<model>.safetensors       init.<name> of the model, and x and y: [step, rank, micro batch, batch, ...]
OUT/<model>_w<N>.json         {"steps", "cases": {name: {"case", "units", "losses", "norms", "evaluations"}}}
                              losses [rank][step][micro batch * forwards], norms [step], evaluations [rank][step]
OUT/<model>_w<N>.safetensors  <case>/<name>: a parameter after the last step;
                              <case>/<name>/<rank> for buffers and what ranks do not share (ignored modules)
"""
import argparse
import contextlib
import json
import os
import sys
import tempfile
import warnings

warnings.simplefilter("ignore")
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import save_file
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing, checkpoint_wrapper
from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, always_wrap_policy, size_based_auto_wrap_policy
from torch.nn.functional import cross_entropy

import cases as table
from models import MODELS

SIZE_POLICY_NUMEL = 2000
PREFIXES = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def clean(name):
    return ".".join(part for part in name.split(".") if part not in PREFIXES)


def size_policy(module, recurse, nonwrapped_numel):
    return size_based_auto_wrap_policy(module, recurse, nonwrapped_numel, min_num_params=SIZE_POLICY_NUMEL)


def inputs_of(model):
    """Initial parameters and data; the same for every case of the model."""
    generator = torch.Generator().manual_seed(17)
    build, _, data = MODELS[model]
    torch.manual_seed(23)
    module = build()
    with torch.no_grad():
        for parameter in module.parameters():  # nothing at its special value: gains of one, biases of zero
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
    lead = (table.STEPS, max(table.WORLDS), 3)
    x, y = data(generator, lead)
    return {**{f"init.{name}": p.detach().clone() for name, p in module.named_parameters()}, "x": x, "y": y}


def build(model, case, inputs):
    make, units, _ = MODELS[model]
    module = make()
    module.load_state_dict({k.removeprefix("init."): v for k, v in inputs.items() if k.startswith("init.")}, strict=False)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(not any(name == f or (f.endswith(".") and name.startswith(f)) for f in case["frozen"]))
    return module, units


def mixed_precision(words):
    words = [w for w in words.split("+") if w]
    low = {f"{word}_dtype": torch.bfloat16 for word in words if word in ("param", "reduce", "buffer")}
    if "reduce32" in words:
        low["reduce_dtype"] = torch.float32
    return MixedPrecision(**low, keep_low_precision_grads="keep" in words) if words else None


def groups_of(case, world):
    """Rank r shares a copy with the ranks beside it."""
    shard = case["shard"]
    sharing = [dist.new_group(list(range(first, first + shard))) for first in range(0, world, shard)]
    copies = [dist.new_group(list(range(place, world, shard))) for place in range(shard)]
    rank = dist.get_rank()
    return sharing[rank // shard], copies[rank % shard]


def wrapped(model, case, inputs, groups):
    module, units = build(model, case, inputs)
    policy = {"units": ModuleWrapPolicy(set(units)), "none": None, "all": always_wrap_policy, "size": size_policy}[case["wrap"]]
    prefetch = {"PRE": BackwardPrefetch.BACKWARD_PRE, "POST": BackwardPrefetch.BACKWARD_POST, "none": None}
    sharded = FullyShardedDataParallel(
        module, process_group=groups(case["shard"]) if case["shard"] else None, sharding_strategy=ShardingStrategy[case["strategy"]],
        auto_wrap_policy=policy,
        backward_prefetch=prefetch[case["backward_prefetch"]], mixed_precision=mixed_precision(case["mixed"]),
        ignored_modules=[module.get_submodule(name) for name in case["ignored"]], device_id=torch.device("cpu"),
        forward_prefetch=case["forward_prefetch"], limit_all_gathers=case["limit_all_gathers"], use_orig_params=case["use_orig_params"])
    if case["checkpoint"]:
        apply_activation_checkpointing(sharded, checkpoint_wrapper_fn=checkpoint_wrapper, check_fn=lambda m: isinstance(m, units))
    return sharded


def optimizer_of(case, parameters):
    parameters = [p for p in parameters if p.requires_grad]
    if case["optimizer"] == "sgd":
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    return torch.optim.AdamW(parameters, lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01)


def train(model, case, inputs, rank, groups):
    sharded = wrapped(model, case, inputs, groups)
    optimizer = optimizer_of(case, sharded.parameters())
    losses, norms, evaluations = [], [], []

    def loss_of(step, micro):
        logits = sharded(inputs["x"][step, rank, micro])
        return cross_entropy(logits.float().flatten(0, -2), inputs["y"][step, rank, micro].flatten())

    for step in range(table.STEPS):
        found = []
        for micro in range(case["micro"]):
            silent = case["no_sync"] and micro + 1 < case["micro"]
            with sharded.no_sync() if silent else contextlib.nullcontext():
                parts = [loss_of(step, micro + i) for i in range(case["forwards"])]
                (sum(parts) / case["micro"]).backward()
            found += [part.item() for part in parts]
        losses.append(found)
        if case["clip"]:
            norms.append(sharded.clip_grad_norm_(case["clip"], case["norm"] or float("inf")).item())
        optimizer.step()
        optimizer.zero_grad()
        if case["evaluate"]:
            with torch.no_grad():
                evaluations.append(loss_of(step, 2).item())

    # The root, and what has parameters of its own: FSDP1 wraps a list of modules too, around nothing.
    units = [clean(name) for name, m in sharded.named_modules()
             if isinstance(m, FullyShardedDataParallel) and (m is sharded or m._handle is not None)]
    ignored = tuple(name + "." for name in case["ignored"])
    own = {clean(name): b.detach().clone() for name, b in sharded.named_buffers()}
    shared = {}
    with FullyShardedDataParallel.summon_full_params(sharded, writeback=False):
        for name, parameter in sharded.named_parameters():
            (own if clean(name).startswith(ignored or " ") else shared)[clean(name)] = parameter.detach().clone()
    return {"units": units, "losses": losses, "norms": norms, "evaluations": evaluations, "own": own, "shared": shared}


def merged(by_rank):
    record = {"units": by_rank[0]["units"], "losses": [r["losses"] for r in by_rank], "norms": by_rank[0]["norms"],
              "evaluations": [r["evaluations"] for r in by_rank]}
    tensors = dict(by_rank[0]["shared"])
    for rank, result in enumerate(by_rank):
        tensors.update({f"{name}/{rank}": value for name, value in result["own"].items()})
        for name, value in result["shared"].items():
            assert torch.equal(value, tensors[name]), f"ranks 0 and {rank} of PyTorch have another {name}"
    return record, tensors


def work(rank, world, models, store, out):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    made = {}

    def groups(shard):
        if shard not in made:
            made[shard] = groups_of({"shard": shard}, world)
        return made[shard]

    for model in models:
        inputs, records, tensors, chosen = inputs_of(model), {}, {}, table.cases(model, world)
        for name, case in chosen.items():
            by_rank = [None] * world
            try:
                result = train(model, case, inputs, rank, groups)
            except Exception as error:
                raise RuntimeError(f"{model} on {world} ranks, {name}") from error
            dist.gather_object(result, by_rank if rank == 0 else None)
            if rank == 0:
                records[name], found = merged(by_rank)
                tensors.update({f"{name}/{key}": value.contiguous() for key, value in found.items()})
        if rank == 0:
            save_file(tensors, f"{out}/{model}_w{world}.safetensors")
            with open(f"{out}/{model}_w{world}.json", "w") as file:
                listed = {name: {"case": case, **records[name]} for name, case in chosen.items()}
                json.dump({"steps": table.STEPS, "cases": listed}, file)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--only", action="append")
    parser.add_argument("--world", type=int, action="append")
    args = parser.parse_args()
    models = args.only or list(MODELS)
    os.makedirs(args.out, exist_ok=True)
    for model in models:
        save_file(inputs_of(model), f"{args.out}/{model}.safetensors")
    with tempfile.TemporaryDirectory() as tmp:
        for world in args.world or table.WORLDS:
            mp.spawn(work, (world, models, f"{tmp}/store{world}", args.out), world)


if __name__ == "__main__":
    main()
