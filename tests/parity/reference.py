#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the cases of cases.py with the installed PyTorch's FSDP1 (gloo, CPU), for parity_test.cpp to compare with.

  python reference.py OUT [--only MODEL] [--world N]

OUT/<model>.safetensors       init.<name> of the model, and x and y: [step, rank, micro batch, batch, ...]
OUT/<model>_w<N>.json         {"steps", "capability", "environment", "cases": {name: {"case", "units", "losses", "norms",
                              "evaluations", "floor"}}}
                              losses [rank][step][micro batch * forwards], norms [step], evaluations [rank][step];
                              floor {"losses", "norms", "weights"}, of bfloat16 cases: the distance of PyTorch from itself
                              at a lower level of kernels, and if gradients are bfloat16, with them added in float32
OUT/<model>_w<N>.safetensors  <case>/<name>: a parameter after the last step;
                              <case>/<name>/<rank> for buffers and what ranks do not share (ignored modules)
OUT/<model>_w<N>_<level>.*    the same for fewer cases, computed at a lower level of kernels
"""
import argparse
import contextlib
import gc
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
from safetensors.torch import load_file, save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing, checkpoint_wrapper
from torch.distributed.fsdp import (BackwardPrefetch, FSDPModule, FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy,
                                    ShardingStrategy, fully_shard)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, always_wrap_policy, size_based_auto_wrap_policy
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import cases as table
import levels
import models
import own_loops
import public_models

MODELS = {**models.MODELS, **public_models.PUBLIC, **own_loops.OWN_LOOPS}
SIZE_POLICY_NUMEL = 2000
EXACT_SUMS = "exact"
PREFIXES = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "module")


def clean(name):
    return ".".join(part for part in name.split(".") if part not in PREFIXES)


def size_policy(module, recurse, nonwrapped_numel):
    return size_based_auto_wrap_policy(module, recurse, nonwrapped_numel, min_num_params=SIZE_POLICY_NUMEL)


def inputs_of(model):
    """Initial parameters and data; the same for every case of the model."""
    generator = torch.Generator().manual_seed(17)
    torch.manual_seed(23)
    module = MODELS[model].build()
    with torch.no_grad():
        for parameter in module.parameters():  # nothing at its special value: gains of one, biases of zero
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
    lead = (table.steps(model), max(table.WORLDS), 3)
    return {**{f"init.{name}": p.detach().clone() for name, p in module.named_parameters()},
            **MODELS[model].data(generator, lead)}


def build(model, case, inputs):
    module = MODELS[model].build()
    module.load_state_dict({k.removeprefix("init."): v for k, v in inputs.items() if k.startswith("init.")}, strict=False)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(not any(name == f or (f.endswith(".") and name.startswith(f)) for f in case["frozen"]))
    return module


def mixed_precision(words):
    words = [w for w in words.split("+") if w]
    low = {f"{word}_dtype": torch.bfloat16 for word in words if word in ("param", "reduce", "buffer")}
    if "reduce32" in words:
        low["reduce_dtype"] = torch.float32
    return MixedPrecision(**low, keep_low_precision_grads="keep" in words) if words else None


def groups_of(case, world):
    """Rank r shares a copy with the ranks next to it."""
    shard = case["shard"]
    sharing = [dist.new_group(list(range(first, first + shard))) for first in range(0, world, shard)]
    copies = [dist.new_group(list(range(place, world, shard))) for place in range(shard)]
    rank = dist.get_rank()
    return sharing[rank // shard], copies[rank % shard]


def mean_in_float32(_, unsharded, sharded):
    """Gloo adds bfloat16 gradients in bfloat16; this adds them in float32, and rounds the mean to the dtype of `sharded`."""
    total = unsharded.bfloat16().float()
    dist.all_reduce(total)
    sharded.copy_(total.chunk(dist.get_world_size())[dist.get_rank()] / dist.get_world_size())


class Replica(DistributedDataParallel):
    """Not sharded, with FSDP1's methods."""

    def clip_grad_norm_(self, max_norm, norm_type=2.0):
        return torch.nn.utils.clip_grad_norm_(self.parameters(), max_norm, norm_type)


class Composed:
    """A module sharded by fully_shard(), with FSDP1's methods."""

    def __init__(self, module, case):
        self.module = module
        self.require = module.set_requires_all_reduce if case["no_all_reduce"] else module.set_requires_gradient_sync
        for inner in module.modules():
            if case["divide"] and isinstance(inner, FSDPModule):
                inner.set_gradient_divide_factor(case["divide"])
                inner.set_force_sum_reduction_for_comms(True)  # Gloo has no other

    def __call__(self, x):
        return self.module(x)

    def parameters(self):
        return self.module.parameters()

    @contextlib.contextmanager
    def no_sync(self):
        self.require(False)
        yield
        self.require(True)

    def clip_grad_norm_(self, max_norm, norm_type=2.0):
        return torch.nn.utils.clip_grad_norm_(self.module.parameters(), max_norm, norm_type).full_tensor()


def composed(module, model, case):
    own = dict(text.split("=") for text in case["own"])
    world, shard = dist.get_world_size(), case["shard"]
    mesh = init_device_mesh("cpu", (world // shard, shard) if shard else (world,), mesh_dim_names=("copies", "shards") if shard else ("shards",))
    for name, inner in reversed(list(module.named_modules())):
        if name and not isinstance(inner, tuple(MODELS[model].units)) and name not in own:
            continue
        words = own.get(name, "").split("+")
        dtypes = own[name] if name in own and {"param", "full"} & set(words) else case["mixed"]
        given = {f"{word}_dtype": torch.bfloat16 for word in dtypes.split("+") if word in ("param", "reduce")}
        if "reduce32" in dtypes:
            given["reduce_dtype"] = torch.float32
        if "full" in words:
            given["param_dtype"] = torch.float32
        if "out" in words:
            given["output_dtype"] = torch.bfloat16
        reshard = 2 if "keep2" in words else "hold" not in words and ("reshard" in words or case["strategy"] != "SHARD_GRAD_OP")
        fully_shard(inner, mesh=mesh, reshard_after_forward=reshard, mp_policy=MixedPrecisionPolicy(**given))
    return Composed(module, case)


def wrapped(module, model, case, groups):
    units = MODELS[model].units
    if case["peer"] == "fsdp2":
        return composed(module, model, case)
    if case["peer"] == "ddp":
        return Replica(module, find_unused_parameters=MODELS[model].loop is None, broadcast_buffers=False)
    policy = {"units": ModuleWrapPolicy(set(units)), "none": None, "all": always_wrap_policy, "size": size_policy}[case["wrap"]]
    mixed = case["mixed"]
    if case.get("exact_sums") and "keep" not in mixed:  # gradients stay bfloat16 to the end
        mixed = "+".join([*(word for word in mixed.split("+") if word != "reduce"), "reduce32"])
    prefetch = {"PRE": BackwardPrefetch.BACKWARD_PRE, "POST": BackwardPrefetch.BACKWARD_POST, "none": None}
    sharded = FullyShardedDataParallel(
        module, process_group=groups(case["shard"]) if case["shard"] else None, sharding_strategy=ShardingStrategy[case["strategy"]],
        auto_wrap_policy=policy,
        backward_prefetch=prefetch[case["backward_prefetch"]], mixed_precision=mixed_precision(mixed),
        ignored_modules=[module.get_submodule(name) for name in case["ignored"]], device_id=torch.device("cpu"),
        forward_prefetch=case["forward_prefetch"], use_orig_params=case["use_orig_params"])
    if case.get("exact_sums"):
        sharded.register_comm_hook(None, mean_in_float32)
    if case["checkpoint"]:
        apply_activation_checkpointing(sharded, checkpoint_wrapper_fn=checkpoint_wrapper, check_fn=lambda m: isinstance(m, units))
    return sharded


def optimizer_of(case, parameters):
    parameters = [p for p in parameters if p.requires_grad]
    if case["optimizer"] == "sgd":
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    if case["optimizer"] == "adam":
        return torch.optim.Adam(parameters, lr=3e-3, betas=(0.9, 0.95), eps=1e-8)
    # LibTorch's AdamW rounds its moments in another way than PyTorch's (two steps for one lerp). float32 cases allow for that, but a weight
    # near the edge of two bfloat16 numbers may fall on either side of it: the fused kernel is the same for both languages.
    fused = bool(case["mixed"])
    return torch.optim.AdamW(parameters, lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01, fused=fused)


def supervised(module, shard, case, data, steps):
    """The loop of every model without its own: see own_loops.py."""
    sharded = shard(module)
    optimizer = optimizer_of(case, sharded.parameters())
    losses, norms, evaluations = [], [], []

    def loss_of(step, micro):
        logits = sharded(data["x"][step, micro])
        return cross_entropy(logits.float().flatten(0, -2), data["y"][step, micro].flatten())

    for step in range(steps):
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
    return {"": sharded}, {"losses": losses, "norms": norms, "evaluations": evaluations}


def state_of(prefix, sharded, ignored):
    """Returns units; tensors of each rank; shared tensors."""
    if isinstance(sharded, Composed):
        units = [prefix + name for name, m in sharded.module.named_modules() if isinstance(m, FSDPModule)]
        own = {prefix + name: b.detach().clone() for name, b in sharded.module.named_buffers()}
        return units, own, {prefix + name: p.full_tensor().detach().clone() for name, p in sharded.module.named_parameters()}
    # The root, and modules with their own parameters: FSDP1 wraps a list of modules too, without parameters.
    units = [prefix + clean(name) for name, m in sharded.named_modules()
             if isinstance(m, FullyShardedDataParallel) and (m is sharded or m._handle is not None)]
    own = {prefix + clean(name): b.detach().clone() for name, b in sharded.named_buffers()}
    shared = {}
    with (contextlib.nullcontext() if isinstance(sharded, Replica)
          else FullyShardedDataParallel.summon_full_params(sharded, writeback=False)):
        for name, parameter in sharded.named_parameters():
            name = prefix + clean(name)
            (own if name.startswith(ignored) else shared)[name] = parameter.detach().clone()
    return units, own, shared


def train(model, case, inputs, rank, groups):
    data = {name: value[:, rank] for name, value in inputs.items() if not name.startswith("init.")}
    loop = MODELS[model].loop or supervised
    roots, result = loop(build(model, case, inputs), lambda module: wrapped(module, model, case, groups), case, data, table.steps(model))
    result.update(units=[], own={}, shared={})
    for prefix, sharded in roots.items():
        units, own, shared = state_of(prefix, sharded, tuple(name + "." for name in case["ignored"]))
        result["units"] += units
        result["own"].update(own)
        result["shared"].update(shared)
    return result


def merged(by_rank):
    record = {"units": by_rank[0]["units"], "losses": [r["losses"] for r in by_rank], "norms": by_rank[0]["norms"],
              "evaluations": [r["evaluations"] for r in by_rank]}
    tensors = dict(by_rank[0]["shared"])
    for rank, result in enumerate(by_rank):
        tensors.update({f"{name}/{rank}": value for name, value in result["own"].items()})
        for name, value in result["shared"].items():
            assert torch.equal(value, tensors[name]), f"ranks 0 and {rank} of PyTorch have another {name}"
    return record, tensors


def stem(out, model, world, level):
    return f"{out}/{model}_w{world}" + (f"_{level}" if level else "")


def chosen(model, world, level):
    found = table.cases(model, world)
    if level == EXACT_SUMS:
        return {name: {**case, "exact_sums": True} for name, case in found.items() if table.adds_bfloat16(world, case)}
    return {name: case for name, case in found.items() if table.is_for_level(model, case)} if level else found


def work(rank, world, names, store, out, level):
    """`level`: None for the processor's own, one of LEVELS, which the environment was set to, or EXACT_SUMS."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    made = {}

    def groups(shard):
        if shard not in made:
            made[shard] = groups_of({"shard": shard}, world)
        return made[shard]

    for model in names:
        cases = chosen(model, world, level)
        if not cases:
            continue
        inputs, records, tensors = load_file(f"{out}/{model}.safetensors"), {}, {}
        for name, case in cases.items():
            by_rank = [None] * world
            try:
                result = train(model, case, inputs, rank, groups)
            except Exception as error:
                raise RuntimeError(f"{model} on {world} ranks, {name}") from error
            dist.gather_object(result, by_rank if rank == 0 else None)
            if rank == 0:
                record, found = merged(by_rank)
                records[name] = {"case": case, **record}
                tensors.update({f"{name}/{key}": value.contiguous() for key, value in found.items()})
        if rank == 0:
            save_file(tensors, stem(out, model, world, level) + ".safetensors")
            with open(stem(out, model, world, level) + ".json", "w") as file:
                json.dump({"steps": table.steps(model), "capability": torch.backends.cpu.get_cpu_capability(),
                           "environment": levels.environment(), "cases": records}, file)
    gc.collect()  # wrapped modules know their groups, and are in cycles: none may outlive them
    dist.barrier()
    dist.destroy_process_group()


def read(path):
    """A document, and its tensors by case."""
    with open(path + ".json") as file:
        document = json.load(file)
    tensors = {name: {} for name in document["cases"]}
    for key, value in load_file(path + ".safetensors").items():
        name, rest = key.split("/", 1)
        tensors[name][rest] = value
    return document, tensors


def add_floors(out, model, world, others):
    """Gives each bfloat16 case the most that any case of its `mixed` lies apart from itself in `others`, levels or EXACT_SUMS:
    whether a rounding falls otherwise in one short training is luck."""
    own, own_tensors = read(stem(out, model, world, None))
    documents, found = {stem(out, model, world, None): own}, {}
    for other in others:
        if not chosen(model, world, other):
            continue
        document, tensors = read(stem(out, model, world, other))
        for name, record in document["cases"].items():
            case = record["case"]
            if case["mixed"]:
                apart = levels.apart(case, (record, tensors[name]), (own["cases"][name], own_tensors[name]))
                found.setdefault(case["mixed"], []).append(apart)
        if other == EXACT_SUMS:  # only useful for this
            for ending in (".json", ".safetensors"):
                os.remove(stem(out, model, world, other) + ending)
        else:
            documents[stem(out, model, world, other)] = document
    for path, document in documents.items():
        for record in document["cases"].values():
            if record["case"]["mixed"] in found:
                record["floor"] = levels.widest(found[record["case"]["mixed"]])
        with open(path + ".json", "w") as file:
            json.dump(document, file)


@contextlib.contextmanager
def variables(values):
    before = dict(os.environ)
    os.environ.update(values)
    yield
    os.environ.clear()
    os.environ.update(before)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--only", action="append")
    parser.add_argument("--world", type=int, action="append")
    args = parser.parse_args()
    names = args.only or list(MODELS)
    os.makedirs(args.out, exist_ok=True)
    for model in names:
        save_file(inputs_of(model), f"{args.out}/{model}.safetensors")
    low = levels.below()
    others = [low, EXACT_SUMS] if low else [EXACT_SUMS]
    with tempfile.TemporaryDirectory() as tmp:
        for world in args.world or table.WORLDS:
            for level in [None, *others]:
                with variables(levels.LEVELS.get(level, {})):
                    mp.spawn(work, (world, names, f"{tmp}/store{world}{level}", args.out, level), world)
            for model in names:
                if chosen(model, world, None):
                    add_floors(args.out, model, world, others)


if __name__ == "__main__":
    main()
