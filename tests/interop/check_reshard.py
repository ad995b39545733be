#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `fsdp-ckpt shard` and `reshard` with what PyTorch's FSDP writes and loads (gloo, CPU, small models).

  python check_reshard.py WHAT --tool PATH [CASE...]

layout   The chunks of every tensor at N ranks are those that FSDP1 and FSDP2 write at N, for N in 1, 2, 3, 4, 7, 8, from a
         sharded folder and from a full file; so are the paths of the state dict.
resume   PyTorch loads the output of reshard, with FSDP1 and FSDP2: exact state, each rank reads its parts of cut tensors only
         from its own file, and training continues with the losses of a run that loads the original folder.
full     full -> shard -> consolidate is the same object.
folders  CASE...: checkpoints of make_checkpoints.py and of other PyTorch versions, resharded, match the truth.
"""
import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import warnings

warnings.simplefilter("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [HERE, os.path.join(os.path.dirname(HERE), "support")]

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard

import models
import sample
import truth
from ranks import run_ranks
from tool_run import Failure, check, run

WORLDS = (1, 2, 3, 4, 7, 8)


class Net(models.Net):
    """Uneven rows, parameters of one row, biases; buffers with the shapes of parameters."""

    def __init__(self):
        super().__init__()
        self.batch = nn.BatchNorm1d(7)
        self.register_buffer("table", torch.rand(9, 3))
        self.tall = nn.Parameter(torch.rand(17, 2, 3))

    def forward(self, x):
        return super().forward(x) + self.batch(self.inp(x)).square().mean() + self.tall.square().mean() * self.table.mean()


def build(kind, seed):
    torch.manual_seed(seed)
    model = Net()
    if kind == "fsdp1":
        wrap = lambda module, recurse, nonwrapped_numel, **_: recurse or isinstance(module, models.Block)  # noqa: E731
        model = FSDP(model, device_id=torch.device("cpu"), use_orig_params=True, auto_wrap_policy=wrap)
    else:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(model, opt, steps):
    """The same data on every rank, so that a run at any number of ranks sees the same gradients."""
    torch.manual_seed(99)
    losses = []
    for _ in range(steps):
        opt.zero_grad()
        loss = model(torch.randn(4, models.IN)).square().mean()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses


def state_of(model, opt):
    m, o = get_state_dict(model, opt)
    return {"model": m, "optimizer": o, "epoch": 3, "lr": [0.1, 0.2], "names": {"run": "a", "seed": 7}}


def save(rank, world, kind, folder, steps=2):
    model, opt = build(kind, seed=1)
    train(model, opt, steps)
    dcp.save(state_of(model, opt), checkpoint_id=folder)


class CountingReader(dcp.FileSystemReader):
    """Records which bytes of which file are read."""

    def __init__(self, path):
        super().__init__(path)
        self.slices = []

    def _slice_file(self, file, sinfo):
        self.slices.append((sinfo.relative_path, sinfo.offset))
        return super()._slice_file(file, sinfo)


def whole(x):
    """A state dict with every tensor gathered."""
    if isinstance(x, dict):
        return {k: whole(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [whole(v) for v in x]
    if hasattr(x, "full_tensor"):
        return x.full_tensor()
    if hasattr(x, "local_shards"):
        out = torch.empty(x.size()) if torch.distributed.get_rank() == 0 else None
        x.gather(0, out)
        box = [out]
        torch.distributed.broadcast_object_list(box)
        return box[0]
    return x


def resume(rank, world, kind, folder):
    """Loads, reports the reads, and trains on: (state as loaded, files of cut tensors, files opened, losses)."""
    opened = set()
    sys.addaudithook(lambda event, a: opened.add(os.path.basename(str(a[0]))) if event == "open" and str(a[0]).endswith(".distcp") else None)
    model, opt = build(kind, seed=5)
    state = state_of(model, opt)
    state["epoch"] = None
    reader = CountingReader(folder)
    # PyTorch 2.11 drops ShardedTensors of which a rank has no part while it flattens them, and then assumes a folder from before 2.4;
    # without that step it loads.
    dcp.load(state, storage_reader=reader, planner=DefaultLoadPlanner(flatten_sharded_tensors=False))
    set_state_dict(model, opt, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    meta = reader.read_metadata()
    cut = {k for k, v in meta.state_dict_metadata.items() if len(getattr(v, "chunks", ())) > 1}
    items = {(info.relative_path, info.offset): index.fqn for index, info in meta.storage_data.items()}
    files = sorted({path for path, offset in reader.slices if items[(path, offset)] in cut})
    check(state["epoch"] == 3 and state["names"] == {"run": "a", "seed": 7}, "values differ")
    loaded = truth.describe(whole(state_of(model, opt)))
    return loaded, files, sorted(opened), train(model, opt, 3)


def chunks_of(folder, keep_empty=True):
    meta = dcp.FileSystemReader(folder).read_metadata()
    tensors = {}
    for key, entry in meta.state_dict_metadata.items():
        if not hasattr(entry, "chunks"):
            tensors[key] = "value"
            continue
        chunks = sorted((tuple(c.offsets), tuple(c.sizes)) for c in entry.chunks)
        tensors[key] = (str(entry.properties.dtype), tuple(entry.size), [c for c in chunks if keep_empty or 0 not in c[1]])
    stored = {(i.fqn, None if i.offset is None else tuple(i.offset)) for i in meta.storage_data}
    return tensors, dict(meta.planner_data), stored


def compare_layout(what, ours, theirs, keep_empty):
    mine, my_paths, my_items = chunks_of(ours)
    want, paths, items = chunks_of(theirs, keep_empty)
    for key in sorted(want.keys() | mine.keys()):
        check(want.get(key) == mine.get(key), f"{what}: {key}: expected {want.get(key)}, found {mine.get(key)}")
    check(my_paths == paths, f"{what}: the paths differ: {set(my_paths.items()) ^ set(paths.items())}")
    boxes = {(k, c[0]) for k, v in mine.items() if v != "value" for c in v[2]} | {(k, None) for k, v in mine.items() if v == "value"}
    check(my_items == boxes, f"{what}: items and chunks differ: {my_items ^ boxes}")
    check(not keep_empty or my_items == items, f"{what}: the items differ: {my_items ^ items}")
    return len(want)


def layout(tool, tmp, _):
    for kind in "fsdp1", "fsdp2":
        saved = {}
        for world in WORLDS:
            saved[world] = os.path.join(tmp, f"{kind}_w{world}")
            run_ranks(world, save, kind, saved[world])
        full = os.path.join(tmp, f"{kind}.pt")
        dcp_to_torch_save(saved[2], full)
        for world in WORLDS:
            for name, verb, source in (("2", "reshard", saved[2]), ("7", "reshard", saved[7]), ("1", "reshard", saved[1]), ("full", "shard", full)):
                out = os.path.join(tmp, f"{kind}_{name}_to_{world}")
                run(tool, verb, source, out, "--world-size", world, "-q")
                run(tool, "verify", out, "--strict", "-q")
                count = compare_layout(f"{kind}: {name} -> {world}", out, saved[world], keep_empty=kind == "fsdp1")
                files = sorted(f for f in os.listdir(out) if f != ".metadata")
                check(files == sorted(f"__{r}_0.distcp" for r in range(world)), f"{kind}: {name} -> {world}: files {files}")
        print(f"{kind}: {count} entries equal at {', '.join(map(str, WORLDS))} ranks, from 1, 2 and 7 ranks and from a full file")


def resume_all(tool, tmp, _):
    for kind, worlds in (("fsdp1", ((3, 2), (2, 4))), ("fsdp2", ((2, 3), (4, 1)))):
        for before, after in worlds:
            what = f"{kind}: {before} -> {after}"
            source = os.path.join(tmp, f"{kind}_w{before}")
            if not os.path.exists(source):
                run_ranks(before, save, kind, source)
            out = os.path.join(tmp, f"{kind}_{before}_to_{after}")
            run(tool, "reshard", source, out, "--world-size", after, "-q")
            ours = run_ranks(after, resume, kind, out)
            direct = run_ranks(after, resume, kind, source)
            replicated = set()
            meta = dcp.FileSystemReader(out).read_metadata()
            for index, info in meta.storage_data.items():
                if len(getattr(meta.state_dict_metadata[index.fqn], "chunks", ())) <= 1:
                    replicated.add(info.relative_path)
            for rank, (mine, theirs) in enumerate(zip(ours, direct)):
                check(not truth.diff(theirs[0], mine[0]), f"{what}: rank {rank}: {truth.diff(theirs[0], mine[0])[:5]}")
                own = f"__{rank}_0.distcp"
                check(set(mine[1]) <= {own}, f"{what}: rank {rank} reads parts of cut tensors from {mine[1]}")
                check(set(mine[2]) <= replicated | {own}, f"{what}: rank {rank} opens {mine[2]}")
                check(mine[3] == theirs[3], f"{what}: rank {rank}: losses {mine[3]}, without the detour {theirs[3]}")
            check(any(mine[1] for mine in ours) or after == 1, f"{what}: no rank reads a cut tensor")
            print(f"{what}: exact state, each rank its own file for what is cut, losses {ours[0][3]} as without the detour")
    mixed(tool, tmp)


def mixed(tool, tmp):
    """A file of another step in a folder: names, sizes, shapes and dtypes are the same, the counters of steps are not."""
    paths = {steps: os.path.join(tmp, f"steps{steps}") for steps in (2, 5)}
    for steps, path in paths.items():
        run_ranks(3, save, "fsdp2", path, steps)
        run(tool, "verify", path, "--strict", "-q")
    meta = dcp.FileSystemReader(paths[2]).read_metadata()
    counting = sorted({info.relative_path for index, info in meta.storage_data.items() if index.fqn.endswith(".step")})
    check(len(counting) > 1, f"counters lie in {counting} alone")
    for name in counting:
        out = os.path.join(tmp, "mixed-" + name)
        shutil.copytree(paths[5], out)
        shutil.copyfile(os.path.join(paths[2], name), os.path.join(out, name))
        done = subprocess.run([tool, "verify", out], capture_output=True, text=True)
        check(done.returncode == 0 and "warning[MISMATCH]" in done.stdout and "up to 2" in done.stdout and "up to 5" in done.stdout, done.stdout)
    print(f"a file of another step is named, for each of {counting}")


def plain(x):
    """The part of an object that a folder keeps: dicts with text for keys; lists, tuples and tensors unchanged."""
    if isinstance(x, dict):
        return {str(k): plain(v) for k, v in x.items()}
    if isinstance(x, list):
        return [plain(v) for v in x]
    return x.detach() if isinstance(x, torch.Tensor) else x


def full_objects():
    torch.manual_seed(3)
    model = Net()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, opt, 1)
    yield "plain", {"model": model.state_dict(), "optimizer": opt.state_dict(), "epoch": 3}
    yield "model", model.state_dict()
    tied = torch.rand(5, 3)
    yield "odd", {"tied": tied, "again": tied, "view": torch.arange(20.).reshape(4, 5)[1:3, 1:4], "transposed": torch.rand(4, 6).t(),
                  "empty": torch.empty(0, 4), "no_rank": torch.tensor(2.5), "list": [torch.ones(3), 1, None, {}], "nothing": {}, "none": None,
                  "tuple": (torch.rand(2, 2), 1), "pairs": [(0.9, 0.95), (1, 2)], "complex": torch.rand(3, 2, dtype=torch.complex64).conj(),
                  "half": torch.rand(9).bfloat16(), "big": 2 ** 80, "set": {1, 2}, "bytes": b"\x00\xff", "fp8": torch.rand(6).to(torch.float8_e4m3fn)}


def in_folder(tree):
    """The truth without empty mappings: PyTorch drops them on the way into a folder, and so does the tool."""
    if "container" not in tree:
        return tree
    kept = [[k, in_folder(v)] for k, v in tree["items"]]
    return {**tree, "items": [[k, v] for k, v in kept if v != {"container": "dict", "items": []}]}


def full(tool, tmp, _):
    for name, obj in full_objects():
        path, back = os.path.join(tmp, f"{name}.pt"), os.path.join(tmp, f"{name}_back.pt")
        torch.save(obj, path)
        for world in 1, 2, 5, 40:
            out = os.path.join(tmp, f"{name}_{world}")
            run(tool, "shard", path, out, "--world-size", world, "-q")
            run(tool, "consolidate", out, back, "-q", "--force")
            want, got = plain(torch.load(path, weights_only=False)), torch.load(back, weights_only=False)
            ours = want
            if name == "plain":  # numbers of parameters are numbers again, as an optimizer requires
                numbered = {int(k): v for k, v in want["optimizer"]["state"].items()}
                ours = {**want, "optimizer": {**want["optimizer"], "state": numbered}}
            lines = truth.diff(in_folder(truth.describe(ours)), truth.describe(got))
            check(not lines, f"{name} by {world} ranks: {lines[:10]}")
            theirs = os.path.join(tmp, f"{name}_theirs.pt")
            dcp_to_torch_save(out, theirs)
            lines = truth.diff(in_folder(truth.describe(want)), truth.describe(torch.load(theirs, weights_only=False)))
            check(not lines, f"{name} by {world} ranks, read by PyTorch: {lines[:10]}")
        print(f"{name}: the same object after shard at 1, 2, 5 and 40 ranks")
    # An optimizer without state beside lists that are taken apart: PyTorch's loader would take an entry for it for one of before 2.4.
    model = Net()
    state = {"model": model.state_dict(), "optimizer": torch.optim.SGD(model.parameters(), lr=0.5).state_dict(), "extra": {}}
    path, out = os.path.join(tmp, "stateless.pt"), os.path.join(tmp, "stateless")
    torch.save(state, path)
    run(tool, "shard", path, out, "--world-size", 2, "-q")
    fresh = Net()
    target = {"model": fresh.state_dict(), "optimizer": torch.optim.SGD(fresh.parameters(), lr=0.1).state_dict(), "extra": {}}
    dcp.load(target, checkpoint_id=out)
    lines = truth.diff(truth.describe(plain(state)), truth.describe(plain(target)))
    check(not lines, f"an optimizer without state: {lines[:10]}")
    print("an optimizer without state: PyTorch loads the folder")
    tables_of_quantized_states(tool, tmp)


def tables_of_quantized_states(tool, tmp):
    """bitsandbytes keeps a map of 256 numbers and a scale per block beside bytes of the parameter's shape: only rows of parameters are cut."""
    torch.manual_seed(4)
    model = {"a.weight": torch.rand(64, 96), "b.weight": torch.rand(64, 96)}
    state = {name: {"step": 3, "state1": torch.randint(0, 255, (64, 96), dtype=torch.uint8), "qmap1": torch.rand(256), "absmax1": torch.rand(24),
                    "exp_avg_sq": torch.rand(64, 96)} for name in model}
    optimizer = {"state": state, "param_groups": [{"params": list(model), "lr": 0.1}]}
    path, out = os.path.join(tmp, "quantized.pt"), os.path.join(tmp, "quantized")
    torch.save({"model": model, "optimizer": optimizer}, path)
    run(tool, "convert", path, out, "--to", "accelerate", "-w", 2, "-q")
    chunks = chunks_of(os.path.join(out, "optimizer_0"))[0]
    for name in model:
        for slot, cut in {"qmap1": 1, "absmax1": 1, "exp_avg_sq": 2}.items():
            found = len(chunks[f"optimizer.state.{name}.{slot}"][2])
            check(found == cut, f"{name}.{slot} lies in {found} chunks")
    back = os.path.join(tmp, "quantized_back.pt")
    run(tool, "consolidate", out, back, "-q")
    lines = truth.diff(truth.describe(state), truth.describe(torch.load(back, weights_only=False)["optimizer"]["state"]))
    check(not lines, f"quantized states: {lines[:10]}")
    print("quantized states: maps and scales are whole")


def plain_truth(tree):
    """The part of a truth that a folder keeps: dicts with text for keys (see truth.py)."""
    if tree.get("container") in ("dict", "OrderedDict"):
        items = [[k if k[:1] in "'\"" else repr(k), plain_truth(v)] for k, v in tree["items"]]
        return {**tree, "container": "dict", "items": items}
    if tree.get("container") == "list":
        return {**tree, "items": [[k, plain_truth(v)] for k, v in tree["items"]]}
    return tree


def folders(tool, tmp, cases):
    from check_consolidate import Case, check_pt
    done = 0
    for folder in sample.taken(cases):
        case = Case(folder, tool)
        if case.truth is None or case.is_file:
            continue
        source, case.path = case.path, os.path.join(tmp, "out")
        if "tree" in case.truth:
            case.truth["tree"] = plain_truth(case.truth["tree"])
        if any("qscheme" in v for v in case.truth["items"].values() if isinstance(v, dict)):
            run(tool, "reshard", source, case.path, "--world-size", 3, expect=2)
            check(not os.path.exists(case.path), f"{folder}: refused, but something was written")
            continue
        dry = run(tool, "reshard", source, case.path, "--world-size", 3, "--dry-run", "--json", *case.allow)
        check(not os.path.exists(case.path), f"{folder}: a dry run wrote")
        run(tool, "reshard", source, case.path, "--world-size", 3, "-q", "--force", *case.allow)
        import json
        planned = {f["name"]: f["bytes"] for f in json.loads(dry)["files"]}
        written = {f: os.path.getsize(os.path.join(case.path, f)) for f in os.listdir(case.path)}
        check(planned == written, f"{folder}: planned {planned}, written {written}")
        run(tool, "verify", case.path, "-q", *case.allow)
        try:
            check_pt(case, tmp)
        except Exception as e:
            raise Failure(f"{folder}: {e}")
        for name in os.listdir(tmp):
            if name != "out":
                os.remove(os.path.join(tmp, name))
        subprocess.run(["rm", "-rf", case.path], check=True)
        done += 1
    check(done > 0, "no case was checked")
    print(f"{done} checkpoints hold the same at 3 ranks; the dry run foretold every byte")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("layout", "resume", "full", "folders"))
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--tool", required=True)
    a = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as tmp:
        try:
            {"layout": layout, "resume": resume_all, "full": full, "folders": folders}[a.what](os.path.abspath(a.tool), tmp, a.cases)
        except Failure as failure:
            print(f"FAILED: {failure}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
