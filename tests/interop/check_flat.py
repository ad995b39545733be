#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what fsdp-ckpt makes of FSDP1's LOCAL_STATE_DICT: one file of each rank, with flat parameters (gloo, CPU).

  python check_flat.py --tool PATH [--search N] [--seed S]

Each case is a random module, wrapped by FSDP, trained for a step or two, and saved by its ranks.  The truth is FULL_STATE_DICT, and
FSDP.optim_state_dict, of the same module in the same run: every tensor bit for bit.  --search makes N more cases from seed S on.
"""
import argparse
import json
import os
import random
import re
import shutil
import sys
import tempfile
import warnings

warnings.simplefilter("ignore")
os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, StateDictType

import tried
from ranks import run_ranks
from tool_run import Failure, check, run

CPU = torch.device("cpu")
NAME = "model_0000002.rank_{}.pth"   # as DINOv2's FSDPCheckpointer names them


class Node(nn.Module):
    """Layers and parameters of odd sizes, and further nodes."""

    def __init__(self, rng, depth, options):
        super().__init__()
        self.wrapped = depth > 0 and rng.random() < 0.7
        self.gain = nn.Parameter(torch.randn(rng.choice([1, 2, 3, 5, 7])))
        if rng.random() < 0.5:
            self.register_buffer("seen", torch.arange(rng.choice([1, 3])))
        if rng.random() < 0.3:
            self.register_buffer("hidden", torch.zeros(2), persistent=False)
        self.layers = nn.ModuleList()
        for _ in range(rng.randint(0 if depth else 1, 3)):
            n, m = rng.randint(1, 9), rng.randint(1, 9)
            self.layers.append(rng.choice([lambda: nn.Linear(n, m, bias=rng.random() < 0.7), lambda: nn.LayerNorm(n),
                                           lambda: nn.Embedding(n, m), lambda: nn.Conv2d(n, m, 2, bias=rng.random() < 0.5)])())
        if options["channels_last"]:
            self.layers.to(memory_format=torch.channels_last) if all(isinstance(x, nn.Conv2d) for x in self.layers) else None
        self.free = nn.Linear(2, 3) if options["ignored"] and rng.random() < 0.5 else None
        self.nodes = nn.ModuleList(Node(rng, depth + 1, options) for _ in range(rng.randint(0, 2) if depth < 2 else 0))
        if options["tied"] and rng.random() < 0.6:
            self.first, self.again = nn.Linear(3, 4), nn.Linear(3, 4, bias=False)
            self.again.weight = self.first.weight
        else:
            self.first = self.again = None

    def forward(self, x):
        own = [self.gain, *self.layers.parameters()]
        for part in self.first, self.again, self.free:
            own += [] if part is None else list(part.parameters())
        for i, p in enumerate(own):
            x = x + (p.float() ** 2).sum() * (0.1 + i)
        for node in self.nodes:
            x = node(x)
        return x


def make(options):
    """Returns the module, and the modules in it that FSDP ignores."""
    torch.manual_seed(options["seed"])
    model = Node(random.Random(options["seed"]), 0, options).to(options["dtype"])
    if options["frozen"]:
        for node in model.modules():
            if isinstance(node, Node) and (options["use_orig"] or node.wrapped) and node is not model:
                for p in node.parameters() if not options["use_orig"] else node.layers.parameters():
                    p.requires_grad_(False)
    return model, [node.free for node in model.modules() if isinstance(node, Node) and node.free is not None]


def shapes(model):
    """What the page of the format tells a user to write."""
    first = {}
    return {k: list(v.shape) if first.setdefault((v.data_ptr(), v.shape), k) == k or v.numel() == 0 else first[v.data_ptr(), v.shape]
            for k, v in model.state_dict(keep_vars=True).items()}


def save(rank, world, out, options):
    model, ignored = make(options)
    precision = MixedPrecision(param_dtype=options["param_dtype"]) if options["param_dtype"] else None
    model = FSDP(model, device_id=CPU, use_orig_params=options["use_orig"], ignored_modules=ignored, mixed_precision=precision,
                 auto_wrap_policy=lambda module, recurse, **_: recurse or getattr(module, "wrapped", False))
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = None
    if options["optimizer"]:
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        if options["groups"]:
            groups = [{"params": named[::2]}, {"params": named[1::2], "weight_decay": 0.0}]
            optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=1e-2)
        else:
            optimizer = torch.optim.AdamW(trainable, lr=1e-2)
        for _ in range(2):
            model(torch.ones(1)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
        local = model.state_dict()
    data = {"model": local, "iteration": 2}
    if options["plain"]:
        data["model"] = {k: plain(v, model, k) for k, v in local.items()}
    if optimizer:
        data["optimizer"] = optimizer.state_dict()
    if out:
        torch.save(data, os.path.join(out, NAME.format(rank)))
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        whole = {k: v.detach().clone() for k, v in model.state_dict().items()}
        states = None
        if optimizer:
            states = FSDP.optim_state_dict(model, optimizer)
    if optimizer and options["use_orig"]:
        gather_states(model, optimizer, whole, states)
    return (whole, states) if rank == 0 else None


def gather_states(model, optimizer, whole, states):
    """FSDP.optim_state_dict of PyTorch 2.11 gives one state of a parameter for another on the CPU: with use_orig_params=True it gathers all into
    the same memory.  So what ranks have of each is put together here."""
    own = {n.replace("_fsdp_wrapped_module.", ""): {k: v for k, v in optimizer.state[p].items() if v.dim()} for n, p in model.named_parameters() if p in optimizer.state}
    ranks = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, own)
    for name, kinds in states["state"].items() if dist.get_rank() == 0 else ():
        for kind in [k for k, v in kinds.items() if v.dim()]:
            parts = [rank[name][kind].flatten() for rank in ranks if kind in rank.get(name, ())]
            if parts[0].numel() == whole[name].numel():   # an ignored parameter, which each rank has
                parts = parts[:1]
            kinds[kind] = as_laid(torch.cat(parts), whole[name])


def as_laid(flat, like):
    """FSDP flattens a tensor in the order of its memory."""
    return flat.as_strided(like.shape, like.stride()) if not like.is_contiguous() else flat.view(like.shape)


def plain(value, model, key):
    """The rank's tensor as the module holds it, with the padding at its end."""
    if not hasattr(value, "local_shards"):
        return value
    modules = {re.sub(r"_fsdp_wrapped_module\.|_fsdp_wrapped_module$", "", n).removesuffix("."): m for n, m in model.named_modules() if isinstance(m, FSDP)}
    return modules[key.removesuffix("_flat_param").removesuffix(".")]._handle.flat_param.detach().clone()


def same(what, want, got):
    check(set(want) == set(got), f"{what}: keys {sorted(set(want) ^ set(got))} differ")
    for key in want:
        a, b = want[key], got[key]
        check(isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape, f"{what}: {key}: {b if not hasattr(b, 'shape') else (b.dtype, b.shape)}")
        check(torch.equal(a.contiguous().view(torch.uint8) if a.dim() else a, b.contiguous().view(torch.uint8) if b.dim() else b), f"{what}: {key}: other bits")


def same_states(want, got):
    check(set(want["state"]) == set(got["state"]), f"states of {sorted(map(str, set(want['state']) ^ set(got['state'])))} differ")
    for name, kinds in want["state"].items():
        same(f"state of {name}", kinds, got["state"][name])
    for a, b in zip(want["param_groups"], got["param_groups"], strict=True):
        check(a["params"] == b["params"], f"a group has {b['params']}, expected {a['params']}")
        check(all(a[k] == b[k] for k in a if k not in ("params", "param_names")), "options of a group differ")


DEFAULTS = {"seed": 0, "use_orig": False, "dtype": torch.float32, "param_dtype": None, "tied": False, "ignored": False, "frozen": False,
            "channels_last": False, "optimizer": False, "groups": False, "plain": False}


def random_options(seed):
    rng = random.Random(seed)
    use_orig = rng.random() < 0.5
    return {**DEFAULTS, "seed": seed, "use_orig": use_orig, "dtype": rng.choice([torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64]),
            "param_dtype": rng.choice([None, None, torch.bfloat16, torch.float32]), "tied": rng.random() < 0.4, "ignored": rng.random() < 0.3,
            "frozen": rng.random() < 0.3, "channels_last": rng.random() < 0.3, "optimizer": rng.random() < 0.5, "groups": rng.random() < 0.3,
            "plain": not use_orig and rng.random() < 0.2}


def case(tool, tmp, world, options):
    """Saves and joins one module.  Returns its folder."""
    folder = os.path.join(tmp, "ranks")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    whole, states = run_ranks(world, save, folder, options)[0]
    model, _ = make(options)
    listed = os.path.join(tmp, "shapes.json")
    with open(listed, "w") as f:
        json.dump(shapes(model), f)
    other = os.path.join(tmp, "other.pt")
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    torch.save({"model": model.state_dict(), "epoch": 1}, other)
    # A file cannot say that a dense layout is another one than row-major.
    sources = [other] if options["channels_last"] else [listed, other]
    for source in sources:
        out = os.path.join(tmp, "full.pt")
        said = run(tool, "consolidate", folder, out, "--names-from", source, "--force")
        check("all data matched" in said, said)
        got = torch.load(out, weights_only=True)
        same("model", whole, got["model"])
        check(got["iteration"] == 2, "the iteration is lost")
        if states is not None and "optimizer" not in got and options["frozen"]:
            left_out(tool, folder, "sizes of its states")
        elif states is not None:
            check("optimizer" in got, "the optimizer is lost")
            same_states(states, got["optimizer"])
    return folder, listed, other, whole


def left_out(tool, folder, why):
    found = json.loads(run(tool, "verify", folder, "--json"))["findings"]
    check(any(f["code"] == "EXTRA_FILE" and why in f["message"] for f in found), found)


def described(options, world):
    return f"{world} ranks, " + ", ".join(f"{k}={v}" for k, v in options.items() if v != DEFAULTS[k])


def every_kind(tool, tmp):
    """Odd sizes at 2, 3 and 4 ranks, both ways to register parameters, and what may lie beside."""
    for world in 2, 3, 4:
        for use_orig in False, True:
            more = {"optimizer": True, "tied": world != 3, "ignored": world == 3, "frozen": world == 4, "groups": world == 3}
            options = {**DEFAULTS, "seed": 10 * world, "use_orig": use_orig, **more}
            try:
                case(tool, tmp, world, options)
            except (Failure, RuntimeError) as error:
                raise Failure(f"{described(options, world)}: {error}") from error


def padding_by_the_type_of_forward(tool, tmp):
    """MixedPrecision changes the alignment, which no file says."""
    for dtype, param_dtype in (torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32), (torch.float64, None):
        options = {**DEFAULTS, "seed": 5, "use_orig": True, "dtype": dtype, "param_dtype": param_dtype, "optimizer": True}
        case(tool, tmp, 3, options)


def parts_with_padding(tool, tmp):
    """Plain tensors, whose last parts end in the padding that makes all parts equally long."""
    for world in 2, 3, 4:
        case(tool, tmp, world, {**DEFAULTS, "seed": 7, "plain": True})


def replicas(tool, tmp):
    """Two ranks hold the same part, and are compared.  With HYBRID_SHARD, PyTorch 2.11 fails to save on the second replica: files are copied."""
    for use_orig in False, True:
        folder, listed, _, whole = case(tool, tmp, 2, {**DEFAULTS, "seed": 9, "use_orig": use_orig})
        for rank in range(2):
            shutil.copy(os.path.join(folder, NAME.format(rank)), os.path.join(folder, NAME.format(rank + 2)))
        out = os.path.join(tmp, "full.pt")
        run(tool, "consolidate", folder, out, "--names-from", listed, "--force")
        same("model", whole, torch.load(out)["model"])
        edit(os.path.join(folder, NAME.format(3)), changed_first)
        said = run(tool, "consolidate", folder, os.path.join(tmp, "none.pt"), "--names-from", listed, expect=2)
        check("error[MISMATCH]" in said and "replicas that differ" in said, said)


def changed_first(model):
    next(v for k, v in model.items() if k.endswith("_flat_param"))._local_shards[0].tensor[0] += 1
    return model


def alignment_without_views(tool, tmp):
    """A state dict of use_orig_params=True of which only flat parameters are left: sizes and padding tell the alignment."""
    options = {**DEFAULTS, "seed": 21, "use_orig": True, "param_dtype": torch.bfloat16}
    folder, listed, _, whole = case(tool, tmp, 3, options)
    views = {k for k, _ in make(options)[0].named_parameters(remove_duplicate=False)}
    out = os.path.join(tmp, "full.pt")
    for rank in range(3):
        edit(os.path.join(folder, NAME.format(rank)), lambda model: {k: v for k, v in model.items() if k not in views})
    run(tool, "consolidate", folder, out, "--names-from", listed, "--force")
    same("model", whole, torch.load(out)["model"])
    for rank in range(3):
        edit(os.path.join(folder, NAME.format(rank)), without_padding)
    said = run(tool, "consolidate", folder, out, "--names-from", listed, "--force", expect=2)
    check("error[MISMATCH]" in said and "do not hold what FSDP writes there (42)" in said, said)


def without_padding(model):
    for key, value in model.items():
        if key.endswith("_flat_param"):
            for shard in value._local_shards:
                shard.tensor[shard.tensor == 42] = 0
    return model


def older_names(tool, tmp):
    """Names of PyTorch before 2.0: flat_param, below the wrappers' names where a program took the state dict of a module inside."""
    folder, listed, _, whole = case(tool, tmp, 2, {**DEFAULTS, "seed": 30})
    for old, new in ("_flat_param", "flat_param"), ("flat_param", "_fsdp_wrapped_module.flat_param"):
        for rank in range(2):
            edit(os.path.join(folder, NAME.format(rank)), lambda model, old=old, new=new: {k.removesuffix(old) + new if k.endswith(old) else k: v for k, v in model.items()})
        out = os.path.join(tmp, "full.pt")
        run(tool, "consolidate", folder, out, "--names-from", listed, "--force")
        same(f"model, {new}", whole, torch.load(out)["model"])


def edit(path, change):
    """Changes a rank's model; ShardedTensors need a group to be loaded."""
    run_ranks(1, edit_in_group, path, change)


def edit_in_group(rank, world, path, change):
    with loaded_apart(), torch.no_grad():
        data = torch.load(path, weights_only=False)
        data["model"] = change(data["model"])
        torch.save(data, path)


class loaded_apart:
    """Lets ShardedTensors of other ranks be loaded: they compare themselves with the group."""

    def __enter__(self):
        from torch.distributed._shard.sharded_tensor import ShardedTensor
        self.type, self.set = ShardedTensor, ShardedTensor.__setstate__
        self.get = ShardedTensor.__getstate__

        def set_state(tensor, state):
            tensor._local_shards, tensor._metadata, pg_state, tensor._sharding_spec, tensor._init_rrefs = state
            tensor._saved_state, tensor._process_group = state, None

        ShardedTensor.__setstate__, ShardedTensor.__getstate__ = set_state, lambda tensor: tensor._saved_state

    def __exit__(self, *_):
        self.type.__setstate__, self.type.__getstate__ = self.set, self.get


def names_of_files(tool, tmp):
    """Two steps in one folder, as DINOv2 keeps them, and the state dict alone under Accelerate's names."""
    folder, listed, _, whole = case(tool, tmp, 2, {**DEFAULTS, "seed": 12})
    out, other = os.path.join(tmp, "full.pt"), os.path.join(tmp, "accelerate")
    os.makedirs(other)
    for rank in range(2):
        path = os.path.join(folder, NAME.format(rank))
        run_ranks(1, alone, path, os.path.join(other, f"pytorch_model_fsdp_rank{rank}.bin"))
        shutil.copy(path, os.path.join(folder, f"model_final.rank_{rank}.pth"))
        with open(os.path.join(folder, f"last_checkpoint.rank_{rank}"), "w") as f:
            f.write(f"model_final.rank_{rank}.pth")
    run(tool, "consolidate", folder, out, "--names-from", listed, "-k", "model_final.**", "--strip-prefix", "model_final", "--force")
    got = torch.load(out)
    check(set(got) == {"model", "iteration"}, list(got))
    same("model of a step", whole, got["model"])
    run(tool, "consolidate", other, out, "--names-from", listed, "--force")
    same("model of Accelerate's files", whole, torch.load(out)["model"])


def alone(rank, world, path, out):
    with loaded_apart():
        torch.save(torch.load(path, weights_only=False)["model"], out)


def refusals(tool, tmp):
    """Nothing is written where names are missing, sizes do not fit, or the order is not known."""
    options = {**DEFAULTS, "seed": 20, "tied": True, "optimizer": True}
    folder, listed, other, whole = case(tool, tmp, 2, options)
    out = os.path.join(tmp, "none.pt")

    def refused(code, *words, names=None):
        args = ["--names-from", names] if names else []
        said = run(tool, "consolidate", folder, out, *args, expect=2)
        check(f"error[{code}]" in said and all(w in said for w in words), said)
        check(not os.path.exists(out), "an output was written")

    refused("UNSUPPORTED", "flat parameter", "--names-from")
    said = run(tool, "inspect", folder)
    check("LOCAL_STATE_DICT" in said and "_flat_param" in said, said)
    known = json.load(open(listed))

    def variant(change):
        new = dict(known)
        new = change(new) or new
        path = os.path.join(tmp, "variant.json")
        with open(path, "w") as f:
            json.dump(new, f)
        return path

    name = next(k for k, v in known.items() if isinstance(v, list) and k not in [v for v in known.values() if isinstance(v, str)])
    refused("SHAPE", "elements, expected", names=variant(lambda d: d.update({name: [d[name][0] + 1, *d[name][1:]]})))
    refused("SHAPE", "elements, expected", names=variant(lambda d: d.pop(name) and None))
    tied = next(k for k, v in known.items() if isinstance(v, str))
    refused("SHAPE", f"if '{tied}' were tied to '{known[tied]}'", names=variant(lambda d: d.update({tied: known[known[tied]]})))
    unordered = os.path.join(tmp, "other.safetensors")
    save_file({k: v.contiguous() for k, v in whole.items() if k != tied}, unordered)
    refused("REKEY_AMBIGUOUS", "the order in", names=unordered)
    refused("REKEY_AMBIGUOUS", "the order in", names=variant(lambda d: {k: list(whole[k].shape) for k in sorted(d)}))
    said = run(tool, "consolidate", other, out, "--names-from", listed, expect=2)
    check("error[USAGE]" in said and "no flat parameters" in said, said)
    os.remove(os.path.join(folder, NAME.format(1)))
    run(tool, "verify", folder, expect=1)
    refused("HOLE", names=listed)


def files_that_name_their_parts(tool, tmp):
    """With use_orig_params=True files have each parameter's part as a view: order and places are known, whatever the order of the list."""
    options = {**DEFAULTS, "seed": 20, "use_orig": True, "tied": True, "optimizer": True}
    folder, listed, _, whole = case(tool, tmp, 3, options)
    known = json.load(open(listed))
    known = {k: list(whole[k].shape) for k in sorted(known, reverse=True)}   # another order, and no ties
    path, out = os.path.join(tmp, "variant.json"), os.path.join(tmp, "full.pt")
    with open(path, "w") as f:
        json.dump(known, f)
    run(tool, "consolidate", folder, out, "--names-from", path, "--force")
    same("model", whole, torch.load(out)["model"])
    name = next(k for k, v in known.items() if len(v) == 2 and v[0] != v[1])
    known[name] = [known[name][0] + 1, known[name][1]]
    with open(path, "w") as f:
        json.dump(known, f)
    said = run(tool, "consolidate", folder, out, "--names-from", path, "--force", expect=2)
    check("error[SHAPE]" in said or "error[MISMATCH]" in said, said)
    del known[name]
    with open(path, "w") as f:
        json.dump(known, f)
    said = run(tool, "consolidate", folder, out, "--names-from", path, "--force", expect=2)
    check("error[KEY]" in said and f"lacks the shape of '{name}'" in said, said)


def groups_without_names(tool, tmp):
    """Which parameter is in which of several groups is not known: the optimizer is left out, and a warning says so."""
    folder, listed, _, _ = case(tool, tmp, 2, {**DEFAULTS, "seed": 40, "use_orig": True, "optimizer": True, "groups": True})
    for rank in range(2):
        path = os.path.join(folder, NAME.format(rank))
        run_ranks(1, drop_names, path)
    out = os.path.join(tmp, "full.pt")
    run(tool, "consolidate", folder, out, "--names-from", listed, "--force")
    check("optimizer" not in torch.load(out), "states without known parameters were written")
    left_out(tool, folder, "parameter groups")


def drop_names(rank, world, path):
    with loaded_apart():
        data = torch.load(path, weights_only=False)
        for group in data["optimizer"]["param_groups"]:
            group.pop("param_names", None)
        torch.save(data, path)


def one_rank_has_none(tool, tmp):
    """Where nothing is sharded, PyTorch saves whole parameters."""
    folder, out, listed = os.path.join(tmp, "ranks"), os.path.join(tmp, "full.pt"), os.path.join(tmp, "shapes.json")
    os.makedirs(folder)
    options = {**DEFAULTS, "seed": 1}
    whole, _ = run_ranks(1, save, folder, options)[0]
    path = os.path.join(folder, NAME.format(0))
    run(tool, "consolidate", path, out)
    same("model", whole, torch.load(out)["model"])
    with open(listed, "w") as f:
        json.dump(shapes(make(options)[0]), f)
    said = run(tool, "consolidate", path, out, "--names-from", listed, "--force", expect=2)
    check("error[USAGE]" in said and "no flat parameters" in said, said)


CHECKS = [every_kind, padding_by_the_type_of_forward, parts_with_padding, replicas, alignment_without_views, older_names, names_of_files, refusals, files_that_name_their_parts, groups_without_names,
          one_rank_has_none]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--search", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    failed = 0
    for one in CHECKS if not args.search else []:
        with tempfile.TemporaryDirectory() as tmp:
            try:
                one(args.tool, tmp)
                print(f"passed: {one.__name__}", flush=True)
            except (Failure, RuntimeError, AssertionError) as error:
                failed += 1
                print(f"FAILED: {one.__name__}: {error}", flush=True)
    for seed in range(args.seed, args.seed + args.search):
        options, world = random_options(seed), 2 + seed % 3
        with tempfile.TemporaryDirectory() as tmp:
            try:
                case(args.tool, tmp, world, options)
            except (Failure, RuntimeError) as error:
                failed += 1
                print(f"FAILED: seed {seed}: {described(options, world)}: {error}", flush=True)
    if args.search:
        print(f"{args.search} random modules, {failed} failed")
    if not failed and not args.search:
        for world in 2, 3, 4:
            tried.record("torch", "FSDP1, `LOCAL_STATE_DICT`", "consolidate", "parameters and optimizer equal `FULL_STATE_DICT` bit for bit", ranks=world)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
