#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rekey and rename against PyTorch.

  python check_rekey.py CORPUS_CASE... --tool PATH

1. rekey gives the result of FSDP.rekey_optim_state_dict (except for the order of lists, which PyTorch sorts), on files and folders.
2. The optimizer loads the result, and continues with the same losses.     3. names -> ids -> names changes nothing.
4. Uncertain cases are refused, with both candidates named.     AdamW.load_state_dict loads consolidate's output of a folder by id.
5. rename: real prefixes are removed, PyTorch loads the result; folders share their data files; other file systems get copies.
Every command that writes is run with --dry-run first, which must name the files and bytes that are then written.
"""
import argparse
import copy
import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
import warnings

warnings.simplefilter("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(HERE)

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import OptimStateKeyType

import models

TOOL = None


class Failure(Exception):
    pass


def check(condition, message):
    if not condition:
        raise Failure(message)


def run(*args, expect=0):
    done = subprocess.run([TOOL, *args], capture_output=True, text=True)
    if done.returncode != expect:
        raise Failure(f"{' '.join(args)}: exit {done.returncode}, expected {expect}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def write(verb, source, out, *args):
    """Runs the verb, and compares its dry run with the output."""
    command = [verb, source, out, *args, "--json"]
    said = json.loads(run(*command, "--dry-run"))
    check(not os.path.exists(out), f"{command}: a dry run wrote something")
    did = json.loads(run(*command))
    check(said["files"] == did["files"], f"{command}: a dry run said {said['files']}, then came {did['files']}")
    sizes = {os.path.relpath(f, out): os.path.getsize(f) for f in glob.glob(out + "/**", recursive=True, include_hidden=True) if os.path.isfile(f)} \
        if os.path.isdir(out) else {os.path.basename(out): os.path.getsize(out)}
    check(sizes == {f["name"]: f["bytes"] for f in did["files"]}, f"{command}: said {did['files']}, wrote {sizes}")
    return did


def refused(code, *args, words=()):
    text = run(*args, expect=2)
    check(f"error[{code}]" in text and all(w in text for w in words), f"{args}: expected {code} and {words}, got {text}")
    check(not os.path.exists(args[2]), f"{args}: refused, and wrote {args[2]}")


def load(path):
    if not os.path.isdir(path):
        return torch.load(path, weights_only=True)
    with tempfile.TemporaryDirectory() as tmp:
        dcp_to_torch_save(path, os.path.join(tmp, "full.pt"))
        return torch.load(os.path.join(tmp, "full.pt"), weights_only=False)


def same(a, b, where=""):
    """Raises if two state dicts differ; dicts compare without regard to order."""
    if isinstance(a, dict) and isinstance(b, dict):
        check(set(a) == set(b), f"{where}: keys {sorted(map(str, a))} and {sorted(map(str, b))}")
        for k in a:
            same(a[k], b[k], f"{where}.{k}")
    elif isinstance(a, (list, tuple)) and type(a) is type(b):
        check(len(a) == len(b), f"{where}: {len(a)} and {len(b)} items")
        for i, (x, y) in enumerate(zip(a, b)):
            same(x, y, f"{where}.{i}")
    elif isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        check(a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b), f"{where}: {a} and {b}")
    else:
        check(type(a) is type(b) and (a == b or a != a), f"{where}: {a!r} and {b!r}")


def unordered(osd):
    """The lists of parameters sorted, as PyTorch's rekey leaves them."""
    return {"state": osd["state"], "param_groups": [{**g, "params": sorted(g["params"])} for g in osd["param_groups"]]}


def with_text_keys(osd):
    """Returns the form that a folder gives back."""
    return {"state": {str(k): v for k, v in osd["state"].items()}, "param_groups": osd["param_groups"]}


def groups_of(model, kind):
    named = list(model.named_parameters())
    if kind == "one":
        return [p for _, p in named]
    if kind == "named":
        return named
    matrices = [p for _, p in named if p.dim() > 1]
    rest = [p for _, p in named if p.dim() <= 1]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0, "lr": 0.05}]


OPTIMIZERS = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01),
    "amsgrad": lambda params: torch.optim.Adam(params, lr=0.01, amsgrad=True),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9),
    "adafactor": lambda params: torch.optim.Adafactor(params, lr=0.01),
    "tensor_lr": lambda params: torch.optim.AdamW(params, lr=torch.tensor(0.01)),
}


def trained(optimizer="adamw", groups="one", steps=2, unused=False, seed=0):
    torch.manual_seed(seed)
    model = models.Net()
    if unused:   # frozen: the optimizer lists it and keeps no state of it
        model.one.bias.requires_grad_(False)
    opt = OPTIMIZERS[optimizer](groups_of(model, groups))
    losses(model, opt, steps)
    return model, opt


def losses(model, opt, steps):
    out = []
    torch.manual_seed(7)
    for _ in range(steps):
        opt.zero_grad()
        loss = model(torch.randn(4, models.IN)).square().mean()
        loss.backward()
        opt.step()
        out.append(loss.item())
    return out


def by_pytorch(osd, to, model, opt):
    return FSDP.rekey_optim_state_dict(copy.deepcopy(osd), to, model, optim=opt)


def named_order(model, tmp):
    path = os.path.join(tmp, "names.txt")
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(n + "\n" for n, _ in model.named_parameters())
    return path


def as_pytorch(tmp):
    for number, (optimizer, groups, unused) in enumerate([
            ("adamw", "one", False), ("adamw", "two", False), ("adamw", "two", True), ("adamw", "named", True), ("amsgrad", "two", False),
            ("momentum", "two", True), ("adafactor", "one", False), ("tensor_lr", "two", False)]):
        model, opt = trained(optimizer, groups, unused=unused)
        osd = opt.state_dict()
        named = by_pytorch(osd, OptimStateKeyType.PARAM_NAME, model, opt)
        pt, folder = os.path.join(tmp, f"{number}.pt"), os.path.join(tmp, f"{number}")
        whole = {"model": model.state_dict(), "optimizer": osd, "epoch": 3}
        torch.save(whole, pt)
        dcp.save(whole, checkpoint_id=folder)
        for path in (pt, folder):
            what = f"{optimizer} {groups} {path}"
            out, back = path.replace(str(number), f"{number}-name", 1) if path == folder else path[:-3] + "-name.pt", None
            out = os.path.join(tmp, f"{number}-name") + (".pt" if path == pt else "")
            back = os.path.join(tmp, f"{number}-back") + (".pt" if path == pt else "")
            write("rekey", path, out, "--to", "name")
            ours = load(out)
            same(unordered(ours["optimizer"]), unordered(named), what)
            same(ours["model"], dict(whole["model"]), what)
            check(ours["epoch"] == 3, what)
            order = [n for g in opt.param_groups for p in g["params"] for n, q in model.named_parameters() if p is q]
            check([n for g in ours["optimizer"]["param_groups"] for n in g["params"]] == order, f"{what}: the order of names")
            # names -> ids -> names
            write("rekey", out, back, "--to", "id")
            ids = load(back)["optimizer"]
            same(ids, with_text_keys(osd) if path == folder else osd, what + " back")
            same(unordered(by_pytorch(named, OptimStateKeyType.PARAM_ID, model, opt)), unordered(osd), what + " PyTorch")
            if path == pt:
                check(all(isinstance(k, int) for k in ids["state"]), f"{what}: ids are {list(ids['state'])}")
                write("rekey", back, back[:-3] + "-again.pt", "--to", "name")
                same(load(back[:-3] + "-again.pt"), ours, what + " again")
    # A bare optimizer, with names from elsewhere; and input that has the form already.
    torch.save(osd, os.path.join(tmp, "bare.pt"))
    refused("KEY", "rekey", os.path.join(tmp, "bare.pt"), os.path.join(tmp, "x.pt"), "--to", "name", words=["--names"])
    write("rekey", os.path.join(tmp, "bare.pt"), os.path.join(tmp, "bare-id.pt"), "--to", "id")
    same(load(os.path.join(tmp, "bare-id.pt")), osd, "already by id")
    write("rekey", os.path.join(tmp, "bare.pt"), os.path.join(tmp, "bare-model.pt"), "--to", "name", "--model", pt)
    same(unordered(load(os.path.join(tmp, "bare-model.pt"))), unordered(named), "--model")


def going_on(tmp):
    """Losses after a detour equal those without it."""
    for groups in ("one", "two"):
        model, opt = trained("adamw", groups)
        pt = os.path.join(tmp, groups + ".pt")
        torch.save({"model": model.state_dict(), "optimizer": opt.state_dict()}, pt)
        write("rekey", pt, pt + ".name.pt", "--to", "name")
        write("rekey", pt + ".name.pt", pt + ".id.pt", "--to", "id")
        got = load(pt + ".id.pt")
        other, other_opt = trained("adamw", groups, seed=1)
        other.load_state_dict(got["model"])
        other_opt.load_state_dict(got["optimizer"])
        check(losses(model, opt, 3) == losses(other, other_opt, 3), f"{groups}: other losses")


def takes(osd, model, opt, want, what):
    """A fresh optimizer takes all of the state: PyTorch silently ignores unknown entries."""
    opt.load_state_dict(osd)
    params = [p for g in opt.param_groups for p in g["params"]]
    check(len(opt.state) == len(want["state"]) > 0, f"{what}: {len(opt.state)} of {len(want['state'])} states were taken")
    check(all(isinstance(k, int) for k in osd["state"]), f"{what}: keys are {list(osd['state'])}")
    for number, kept in want["state"].items():
        same(opt.state[params[int(number)]], kept, f"{what}: {number}")


def consolidated(tmp):
    """Folders hold all keys as text; AdamW loads consolidate's output of a state by id."""
    for groups in ("one", "two"):
        model, opt = trained("adamw", groups)
        osd = opt.state_dict()
        named = by_pytorch(osd, OptimStateKeyType.PARAM_NAME, model, opt)
        order = {id(p): n for n, p in model.named_parameters()}
        for g, params in zip(named["param_groups"], opt.param_groups):
            g["params"] = [order[id(p)] for p in params["params"]]
        folders = {"by PyTorch": {"model": model.state_dict(), "optimizer": osd}, "bare": osd,
                   "nested": {"app": {"model": model.state_dict(), "optim": osd}}, "named": {"model": model.state_dict(), "optimizer": named}}
        for name, whole in folders.items():
            folder = os.path.join(tmp, f"{groups}-{name}".replace(" ", "-"))
            dcp.save(whole, checkpoint_id=folder)
            if name == "named":
                write("rekey", folder, folder + "-id", "--to", "id")
                folder += "-id"
            for suffix in (".pt", ".h5"):
                run("consolidate", folder, folder + suffix)
            run("convert", folder + ".h5", folder + "-h5.pt")
            for path in (folder + ".pt", folder + "-h5.pt"):
                got = load(path)
                got = got.get("app", got)
                fresh, fresh_opt = trained("adamw", groups, seed=1)
                takes(got.get("optimizer", got.get("optim", got)), fresh, fresh_opt, osd, path)
                if "model" in got:
                    fresh.load_state_dict(got["model"])
                    other, other_opt = trained("adamw", groups)
                    check(losses(fresh, fresh_opt, 3) == losses(other, other_opt, 3), f"{path}: other losses")
            run("diff", folder, folder + ".pt")
    # Parameters in no group do not belong to the optimizer, and keys of other dicts stay text.
    folder = os.path.join(tmp, "text")
    dcp.save({"names": {"0": torch.zeros(1)}, "optimizer": osd}, checkpoint_id=folder)
    run("consolidate", folder, folder + ".pt")
    check(list(load(folder + ".pt")["names"]) == ["0"], "another dict")


def lightning(tmp):
    """Ids in the model's order with any groups, as Lightning writes them; several optimizers."""
    model, opt = trained("adamw", "two")
    named = by_pytorch(opt.state_dict(), OptimStateKeyType.PARAM_NAME, model, opt)
    by_model = FSDP.rekey_optim_state_dict(copy.deepcopy(named), OptimStateKeyType.PARAM_ID, model)
    path = os.path.join(tmp, "lightning.ckpt")
    torch.save({"state_dict": model.state_dict(), "optimizer_states": [by_model], "epoch": 1, "pytorch-lightning_version": "2.6.6"}, path)
    write("rekey", path, os.path.join(tmp, "name.ckpt"), "--to", "name")
    ours = load(os.path.join(tmp, "name.ckpt"))
    same(unordered(ours["optimizer_states"][0]), unordered(named), "Lightning")
    # With an order given, ids are its positions, like PyTorch's by model.parameters().
    write("rekey", os.path.join(tmp, "name.ckpt"), os.path.join(tmp, "id.ckpt"), "--to", "id", "--names", named_order(model, tmp))
    same(unordered(load(os.path.join(tmp, "id.ckpt"))["optimizer_states"][0]), unordered(by_model), "by the model's order")


def flattened(tmp):
    for groups in ("one", "two"):
        model, opt = trained("adamw", groups)
        flat = get_optimizer_state_dict(model, opt, options=StateDictOptions(flatten_optimizer_state_dict=True))
        named = get_optimizer_state_dict(model, opt)
        pt = os.path.join(tmp, f"flat-{groups}.pt")
        torch.save({"model": model.state_dict(), "optimizer": flat}, pt)
        write("rekey", pt, pt + ".name.pt", "--to", "name")
        same(load(pt + ".name.pt")["optimizer"], named, f"flattened {groups}")
        write("rekey", pt + ".name.pt", pt + ".flat.pt", "--to", "name", "--flatten")
        same(load(pt + ".flat.pt")["optimizer"], flat, f"to flattened {groups}")
        write("rekey", pt, pt + ".id.pt", "--to", "id")
        same(load(pt + ".id.pt")["optimizer"], opt.state_dict(), f"flattened to ids {groups}")
        folder = os.path.join(tmp, f"flat-{groups}")
        dcp.save({"model": model.state_dict(), "optimizer": flat}, checkpoint_id=folder)
        write("rekey", folder, folder + "-name", "--to", "name")
        same(load(folder + "-name")["optimizer"], named, f"flattened folder {groups}")
        write("rekey", folder + "-name", folder + "-flat", "--to", "name", "--flatten")
        same(load(folder + "-flat")["optimizer"], flat, f"folder to flattened {groups}")


class Equal(nn.Module):
    """Layers of one shape."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(3, 3, bias=False) for _ in range(3))

    def forward(self, x):
        return self.c(self.b(self.a(x)))


def uncertain(tmp):
    model = Equal()
    opt = torch.optim.AdamW([{"params": [model.c.weight, model.b.weight], "lr": 0.1}, {"params": [model.a.weight]}])
    model(torch.randn(2, 3)).sum().backward()
    opt.step()
    pt, out = os.path.join(tmp, "equal.pt"), os.path.join(tmp, "out.pt")
    whole = {"model": model.state_dict(), "optimizer": opt.state_dict()}
    torch.save(whole, pt)
    refused("REKEY_AMBIGUOUS", "rekey", pt, out, "--to", "name", words=["'a.weight'", "'b.weight'", "--names"])
    names = os.path.join(tmp, "order.json")
    with open(names, "w", encoding="utf-8") as f:
        json.dump(["c.weight", "b.weight", "a.weight"], f)
    write("rekey", pt, out, "--to", "name", "--names", names)
    same(load(out)["optimizer"], {**by_pytorch(opt.state_dict(), OptimStateKeyType.PARAM_NAME, model, opt),
                                  "param_groups": load(out)["optimizer"]["param_groups"]}, "--names")
    check(load(out)["optimizer"]["param_groups"][0]["params"] == ["c.weight", "b.weight"], "the order of the group")
    # PyTorch's own rekey sorts the names: their order is lost.
    lost = by_pytorch(opt.state_dict(), OptimStateKeyType.PARAM_NAME, model, opt)
    check(lost["param_groups"][0]["params"] == ["b.weight", "c.weight"], "PyTorch sorts")
    torch.save({"optimizer": lost}, pt + ".lost.pt")
    refused("REKEY_AMBIGUOUS", "rekey", pt + ".lost.pt", out + "2.pt", "--to", "id", words=["sorted", "'b.weight'", "'c.weight'"])
    write("rekey", pt + ".lost.pt", out + "2.pt", "--to", "id", "--names", names)
    check([g["params"] for g in load(out + "2.pt")["optimizer"]["param_groups"]] == [[0, 1], [2]], "the order of --names comes back")
    # A list for another optimizer.
    with open(names, "w", encoding="utf-8") as f:
        f.write("c.weight\nb.weight\n")
    refused("KEY", "rekey", pt, out + "3.pt", "--to", "name", "--names", names, words=["3 parameters"])
    # Shapes that contradict the order.
    model, opt = trained("adamw", "one")
    wrong = [n for n, _ in model.named_parameters()][::-1]
    torch.save({"model": model.state_dict(), "optimizer": opt.state_dict()}, pt)
    with open(names, "w", encoding="utf-8") as f:
        json.dump(wrong, f)
    refused("SHAPE", "rekey", pt, out + "4.pt", "--to", "name", "--names", names, words=["parameter 0", "[1]", "'out.weight'", "[6, 7]"])
    # Names that occur twice in JSON maps, and invalid text.
    with open(names, "w", encoding="utf-8") as f:
        f.write('["a", 3]')
    refused("JSON", "rekey", pt, out + "5.pt", "--to", "name", "--names", names, words=["name 2"])


def digest(folder):
    return {f: hashlib.sha256(open(f, "rb").read()).hexdigest() for f in sorted(glob.glob(folder + "/**", recursive=True, include_hidden=True))
            if os.path.isfile(f)}


def inodes(folder):
    return {os.path.basename(f): (os.stat(f).st_dev, os.stat(f).st_ino) for f in glob.glob(folder + "/*") if os.path.isfile(f)}


def prefixes(tmp):
    """Names that torch.compile and DistributedDataParallel produce."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        plain = models.Net()
        wrapped = nn.parallel.DistributedDataParallel(torch.compile(plain))
        named = {k.replace("module._orig_mod.", ""): v for k, v in wrapped.state_dict().items()}
        check(all(k.startswith("module._orig_mod.") for k in wrapped.state_dict()), "the prefix is another")
        opt = torch.optim.AdamW(list(wrapped.named_parameters()))
        wrapped.module._orig_mod(torch.randn(2, models.IN)).sum().backward()
        opt.step()
        osd = by_pytorch(opt.state_dict(), OptimStateKeyType.PARAM_NAME, wrapped, opt)
        whole = {"model": wrapped.state_dict(), "optimizer": {**osd, "param_groups": opt.state_dict()["param_groups"]}}
        for g in whole["optimizer"]["param_groups"]:
            g["params"] = list(g["param_names"])
        pt, folder = os.path.join(tmp, "wrapped.pt"), os.path.join(tmp, "wrapped")
        torch.save(whole, pt)
        dcp.save(whole, checkpoint_id=folder)
    finally:
        torch.distributed.destroy_process_group()
    before = digest(folder)
    for path in (pt, folder):
        out = path + "-out" + path[len(folder):]
        did = write("rename", path, out, "--strip-prefix", "auto")
        check(did["wrappers"] == ["_orig_mod.", "module."], f"{path}: {did['wrappers']}")
        got = load(out)
        same(dict(got["model"]), named, path)
        fresh = models.Net()
        fresh.load_state_dict(got["model"], strict=True)
        check(list(got["optimizer"]["param_groups"][0]["params"]) == [n for n, _ in plain.named_parameters()], f"{path}: params")
        check(got["optimizer"]["param_groups"][0]["param_names"] == [n for n, _ in plain.named_parameters()], f"{path}: param_names")
        check(set(got["optimizer"]["state"]) == {n for n, _ in plain.named_parameters()}, f"{path}: state")
        fresh_opt = torch.optim.AdamW(list(fresh.named_parameters()))
        write("rekey", out, out + ".id" + path[len(folder):], "--to", "id")
        ids = load(out + ".id" + path[len(folder):])["optimizer"]
        ids["state"] = {int(k): v for k, v in ids["state"].items()}
        fresh_opt.load_state_dict(ids)
    check(hasattr(load(pt + "-out.pt")["model"], "_metadata"), "the OrderedDict's attribute is gone")
    check("blocks.0.norm" in load(pt + "-out.pt")["model"]._metadata, "the modules' names are the old ones")
    # Shared on disk, and separate where it matters.
    shared = inodes(folder)
    for name, inode in inodes(folder + "-out").items():
        check((inode == shared.get(name)) == (name == "__0_0.distcp"), f"{name}: {inode}, {shared}")
    shutil.rmtree(folder + "-out")
    check(digest(folder) == before, "the source is another")
    did = write("rename", folder, folder + "-copy", "--strip-prefix", "auto", "--copy")
    check(not any(f.get("linked") for f in did["files"]) and inodes(folder + "-copy")["__0_0.distcp"] != shared["__0_0.distcp"], "--copy links")


def swaps_and_levels(tmp):
    model = Equal()
    folder = os.path.join(tmp, "levels")
    dcp.save({"state_dict": model.state_dict(), "step": 3, "scalars": [1, 2]}, checkpoint_id=folder)
    old = load(folder)
    write("rename", folder, folder + "1", "--rename", "a=b", "--rename", "b=a")
    got = load(folder + "1")["state_dict"]
    same([got["a.weight"], got["b.weight"], got["c.weight"]], [old["state_dict"][k + ".weight"] for k in "bac"], "swap")
    write("rename", folder, folder + "2", "--rename", "state_dict=model")
    same(load(folder + "2"), {"model": old["state_dict"], "step": 3, "scalars": [1, 2]}, "a level renamed")
    write("rename", folder + "2", folder + "3", "--strip-prefix", "model", "--drop", "step", "--drop", "scalars")
    same(load(folder + "3"), old["state_dict"], "a level taken away")
    write("rename", folder + "3", folder + "4", "--rename", "/=net.")
    same(load(folder + "4"), {"net": old["state_dict"]}, "a level added")
    fresh = {"net": {k: torch.zeros_like(v) for k, v in old["state_dict"].items()}}
    dcp.load(fresh, checkpoint_id=folder + "4")
    same(fresh, {"net": old["state_dict"]}, "dcp.load")
    names = os.path.join(tmp, "map.json")
    with open(names, "w", encoding="utf-8") as f:
        json.dump({"a": "c", "c": "a"}, f)
    write("rename", folder, folder + "5", "--map", names, "--drop", "b.*")
    same(load(folder + "5")["state_dict"], {"a.weight": old["state_dict"]["c.weight"], "c.weight": old["state_dict"]["a.weight"]}, "--map")
    refused("REKEY_COLLISION", "rename", folder, folder + "x", "--rename", "a=b", words=["'state_dict.a.weight'", "'state_dict.b.weight'"])
    refused("REKEY_UNUSED", "rename", folder, folder + "x", "--rename", "d=e", words=["'d'"])
    refused("REKEY_UNUSED", "rename", folder, folder + "x", "--drop", "encoder.**", words=["'encoder.**'"])
    for text, code in (('{"a": "b", "a": "c"}', "JSON"), ('{"a": 1}', "JSON"), ('{"a": "\\ud800"}', "JSON"), ("a b\n", "USAGE"),
                       ("a => b\na => c\n", "REKEY_COLLISION"), ("[" * 200, "USAGE"), ('{"a": ' + "[" * 200, "JSON_DEPTH")):
        with open(names, "w", encoding="utf-8") as f:
            f.write(text)
        refused(code, "rename", folder, folder + "x", "--map", names)
    refused("SAME_PATH", "rename", folder, folder + "/inside", "--rename", "a=b")


def halves(tmp):
    """Rules apply to whole keys as inspect prints them; a rule that would match half of the names is refused, with advice."""
    model, opt = trained()
    names = {k: "model." + k if not k.startswith("out") else k for k in model.state_dict()}   # like LlamaForCausalLM: lm_head beside model
    weights = {names[k]: v for k, v in model.state_dict().items()}
    named = by_pytorch(opt.state_dict(), OptimStateKeyType.PARAM_NAME, model, opt)
    optim = {"state": {names[k]: v for k, v in named["state"].items()},
             "param_groups": [{**g, "params": [names[k] for k in g["params"]], "param_names": [names[k] for k in g["params"]]} for g in named["param_groups"]]}
    flat, nested = os.path.join(tmp, "flat"), os.path.join(tmp, "nested")
    dcp.save(weights, checkpoint_id=flat)
    dcp.save({"model": weights, "optimizer": optim, "epoch": 1}, checkpoint_id=nested)
    torch.save(weights, flat + ".pt")
    head = next(k for k in weights if not k.startswith("model."))
    for source in (flat, flat + ".pt"):
        for verb in ("consolidate", "convert", "rename"):
            refused("USAGE", verb, source, os.path.join(tmp, "x.pt"), "--strip-prefix", "model", words=[repr("model."), repr(head), "--rename model.="])
            refused("USAGE", verb, source, os.path.join(tmp, "x.pt"), "--strip-prefix", "model", "-k", "model.**", words=[repr(head), "--exclude"])
        for verb in (["inspect", source], ["verify", source], ["stats", source], ["diff", source, source]):
            check("error[USAGE]" in run(*verb, "-k", "model.**", expect=2), verb)
            run(*verb, "-k", "model.**", "--exclude", "out.**")
            check("error[NOT_FOUND]" in run(*verb, "-k", "nothing.**", expect=2), verb)
            check("error[NOT_FOUND]" in run(*verb, "-k", head, "-k", "nothing.**", expect=2), verb)
    # With the full rule, it is done.
    run("consolidate", flat, os.path.join(tmp, "base.pt"), "-k", "model.**", "--exclude", "out.**", "--strip-prefix", "model")
    same(load(os.path.join(tmp, "base.pt")), {k[6:]: v for k, v in weights.items() if k.startswith("model.")}, "a part chosen")
    # In the nested one, `model` is a level, whatever its modules are called; the report maps old names to new ones.
    out = nested + ".pt"
    said = json.loads(run("consolidate", nested, out, "-k", "model.**", "--strip-prefix", "model", "--json"))
    same(load(out), weights, "a level")
    check({(r["from"], r["to"]) for r in said["renames"]} == {("model." + k, k) for k in weights}, said["renames"])
    check(f"  model.{head} -> {head}\n" in run("consolidate", nested, out, "-k", "model.**", "--strip-prefix", "model", "-n", "--force"), "-n")
    # A parameter's whole key: the optimizer follows.  Likewise for names without a prefix.
    first = next(k for k in weights if k.startswith("model."))
    for number, rule in enumerate((f"model.{first}=model.first", f"{first}=first")):
        did = write("rename", nested, f"{nested}-{number}", "--rename", rule)
        got = load(f"{nested}-{number}")
        check("first" in got["model"] and "first" in got["optimizer"]["state"], f"{rule}: {list(got['optimizer']['state'])}")
        check("first" in got["optimizer"]["param_groups"][0]["params"] and "first" in got["optimizer"]["param_groups"][0]["param_names"], rule)
        check({"from": "model." + first, "to": "model.first"} in did["renames"], did["renames"])
    # The prefix is removed from every name, in the model and in the optimizer.
    write("rename", nested, nested + "-bare", "--rename", "model.model.=model.")
    got = load(nested + "-bare")
    want = [n for n, _ in model.named_parameters()]
    check(set(got["optimizer"]["state"]) == set(want) and sorted(got["optimizer"]["param_groups"][0]["params"]) == sorted(want), "the optimizer")
    same(got["model"], dict(model.state_dict()), "the model")
    refused("USAGE", "rename", nested, nested + "-x", "--rename", f"optimizer.state.{first}=optimizer.state.x", words=["'optimizer' alone"])
    write("rename", nested, nested + "-keys", "--rename", f"/model.{first}=model.first")
    check("first" in load(nested + "-keys")["model"] and first in load(nested + "-keys")["optimizer"]["state"], "keys alone")
    # Dropped keys are named, and their state is dropped too; dropping a whole model keeps its optimizer.
    did = write("rename", nested, nested + "-drop", "--drop", "model." + head)
    check(f"model.{head}" in did["dropped_keys"] and len(did["dropped_keys"]) == did["dropped"] > 1, did["dropped_keys"])
    check(head not in load(nested + "-drop")["optimizer"]["state"] and head not in load(nested + "-drop")["optimizer"]["param_groups"][0]["params"], "its state")
    check(f"  model.{head}\n" in run("rename", nested, nested + "-drop2", "--drop", "model." + head), "named")
    write("rename", nested, nested + "-optim", "--drop", "model.**")
    check(set(load(nested + "-optim")["optimizer"]["state"]) == set(optim["state"]), "the optimizer stays")
    # Two models of one shape: a rule for only one of them is refused.
    twice = os.path.join(tmp, "twice")
    dcp.save({"model": weights, "ema": weights, "optimizer": optim}, checkpoint_id=twice)
    refused("USAGE", "rename", twice, twice + "x", "--rename", f"model.{first}=model.first", words=["ema." + first])
    refused("USAGE", "rename", twice, twice + "x", "--drop", f"model.{first}", words=["ema." + first])
    write("rename", twice, twice + "1", "--rename", f"model.{first}=model.first", "--rename", f"ema.{first}=ema.first")
    got = load(twice + "1")
    check(all("first" in part for part in (got["model"], got["ema"], got["optimizer"]["state"])), "both")


def unreadable_names(tmp):
    """Names that PyTorch saves silently, but that cannot be read unambiguously."""
    names = {"": "part of the key is empty", "a\x1b[31m": "control character at byte 1", "b\0c": "NUL at byte 1", "d\u202ee": "\\u202e", "e\u200b": "\\u200b"}
    for path in (os.path.join(tmp, "odd.pt"), os.path.join(tmp, "odd")):
        state = {"model": {name: torch.ones(2) for name in (*names, "plain", "\u00e4")}}
        if path.endswith(".pt"):
            torch.save(state, path)
        else:
            dcp.save(state, checkpoint_id=path)
        text = run("verify", path)
        check("sound" in text and text.count("warning[NAME]") == len(names), text)
        for symptom in names.values():
            check(symptom in text.replace("byte 7", "byte 1"), f"{symptom}: {text}")
        check(all(ord(c) >= 32 and c not in "\u202e\u200b" for c in text.replace("\n", "")), repr(text))
        run("verify", path, "--strict", expect=1)
        found = json.loads(run("verify", path, "--json"))["findings"]
        check([f["severity"] for f in found] == ["warning"] * len(names), found)
        # As before, a copy keeps them unchanged.
        run("consolidate", path, path + "-full.pt")
        same(load(path + "-full.pt"), state, path)


def neighbours(tmp):
    folder = os.path.join(tmp, "epoch=1.ckpt")
    model = Equal()
    dcp.save({"state_dict": model.state_dict()}, checkpoint_id=folder)
    torch.save({"epoch": 1, "callbacks": {"best": torch.tensor(0.5)}}, os.path.join(folder, "meta.pt"))
    for name in ("config.json", "notes.txt", "__7_0.distcp"):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            f.write("{}")
    did = write("rename", folder, folder + "1", "--rename", "a=x")
    check(did["left_behind"] == ["__7_0.distcp", "notes.txt"], did["left_behind"])
    for name in ("meta.pt", "config.json", "__0_0.distcp"):
        check(inodes(folder)[name] == inodes(folder + "1")[name], f"{name} is not shared")
    write("rename", folder, folder + "2", "--rename", "epoch=epochs", "--drop", "a.weight")
    same(torch.load(os.path.join(folder + "2", "meta.pt")), {"epochs": 1, "callbacks": {"best": torch.tensor(0.5)}}, "meta.pt")


def elsewhere(tmp):
    """Another file system: the tool copies, and damaged data is not copied."""
    if os.stat("/dev/shm").st_dev == os.stat(tmp).st_dev:
        return
    folder = os.path.join(tmp, "here")
    state = {"model": Equal().state_dict()}
    dcp.save(state, checkpoint_id=folder)
    there = tempfile.mkdtemp(dir="/dev/shm")
    try:
        did = write("rename", folder, there + "/out", "--rename", "a=x")
        check(not any(f.get("linked") for f in did["files"]), did["files"])
        same(load(there + "/out")["model"]["x.weight"], state["model"]["a.weight"], "copied")
        with open(os.path.join(folder, "__0_0.distcp"), "r+b") as f:
            at = f.read().find(state["model"]["b.weight"].numpy().tobytes())
            f.seek(at)
            f.write(b"\xff\xff")
        refused("ZIP_CRC", "rename", folder, there + "/out2", "--rename", "a=x")
        check(os.listdir(there) == ["out"], os.listdir(there))
    finally:
        shutil.rmtree(there)


def corpus(tmp, case):
    """Checkpoints of several ranks: other names, the same tensors; ids and back."""
    ckpt = os.path.join(case, "ckpt")
    top = next(k for k in ("model", "net") if any(t["path"][0] == k for t in json.loads(run("inspect", ckpt, "--json"))["tensors"]))
    out = os.path.join(tmp, "renamed")
    write("rename", ckpt, out, "--rename", f"{top}=other", "--rename", "inp=first")
    want, got = load(ckpt), load(out)
    want["other"] = {k.replace("inp.", "first.", 1) if k.startswith("inp.") else k: v for k, v in want.pop(top).items()}
    for name in ("optim", "optimizer"):
        if name in want and "state" in want[name]:
            want[name] = {"state": {k.replace("inp.", "first.", 1): v for k, v in want[name]["state"].items()},
                          "param_groups": [{**g, "params": [n.replace("inp.", "first.", 1) for n in g["params"]]} for g in want[name]["param_groups"]]}
        elif name in want:
            want[name] = {k.replace(".inp.", ".first.", 1): v for k, v in want[name].items()}
    same(got, want, case)
    check("sound" in run("verify", out), case)
    names = os.path.join(tmp, "names")
    optim = next((n for n in ("optim", "optimizer") if "state" in want.get(n, {})), None)
    if optim is None:
        return
    write("rekey", ckpt, names + "-id", "--to", "id")
    ids = load(names + "-id")[optim]
    order = [n for g in load(ckpt)[optim]["param_groups"] for n in g["params"]]
    check([i for g in ids["param_groups"] for i in g["params"]] == list(range(len(order))), f"{case}: ids")
    same(ids["state"], {str(order.index(n)): v for n, v in load(ckpt)[optim]["state"].items()}, case)
    run("consolidate", names + "-id", names + "-id.pt")
    weights = load(ckpt)[top]
    taken = load(names + "-id.pt")[optim]
    check(all(isinstance(k, int) for k in taken["state"]), f"{case}: keys are {list(taken['state'])}")
    fresh = torch.optim.AdamW([{"params": [nn.Parameter(weights[order[i]].clone()) for i in g["params"]]} for g in taken["param_groups"]])
    takes(taken, None, fresh, {"state": {order.index(n): v for n, v in load(ckpt)[optim]["state"].items()}}, case)
    with open(names + ".txt", "w", encoding="utf-8") as f:
        f.writelines(n + "\n" for n in order)
    write("rekey", names + "-id", names + "-name", "--to", "name", "--names", names + ".txt")
    same(load(names + "-name"), load(ckpt), f"{case} back")


def main():
    global TOOL
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--tool", required=True)
    args = parser.parse_args()
    TOOL = os.path.abspath(args.tool)
    checks = [(f.__name__, f, ()) for f in (as_pytorch, going_on, consolidated, halves, unreadable_names, lightning, flattened, uncertain, prefixes, swaps_and_levels, neighbours, elsewhere)]
    checks += [(os.path.basename(c), corpus, (c,)) for c in args.cases]
    failed = 0
    for name, function, more in checks:
        tmp = tempfile.mkdtemp(prefix="fsdp-rekey-")
        try:
            function(tmp, *more)
            print(f"{name}: ok")
        except Exception as e:
            failed += 1
            print(f"{name}: FAILED\n  {e if isinstance(e, Failure) else traceback.format_exc()}")
        finally:
            shutil.rmtree(tmp)
    print(f"{len(checks) - failed} of {len(checks)} ok")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
