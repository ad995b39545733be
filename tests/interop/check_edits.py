#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `fsdp-ckpt set` with the same edits in Python, on checkpoints that PyTorch wrote: values, tensors, keys that are
dropped and taken from another checkpoint.

    check_edits.py --tool PATH
"""
import argparse
import copy
import os
import sys
import tempfile
import warnings

warnings.simplefilter("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [HERE, os.path.join(os.path.dirname(HERE), "support")]

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from tool_run import check, run


def same(a, b, where="$"):
    check(type(a) is type(b), f"{where}: {type(a)} and {type(b)}")
    if isinstance(a, torch.Tensor):
        check(a.dtype == b.dtype and a.shape == b.shape, f"{where}: {a.dtype} {a.shape}, {b.dtype} {b.shape}")
        check(torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)), f"{where}: {a} and {b}")
    elif isinstance(a, dict):
        check(list(a) == list(b), f"{where}: keys {list(a)} and {list(b)}")
        for key in a:
            same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, (list, tuple)):
        check(len(a) == len(b), f"{where}: {a} and {b}")
        for i, (x, y) in enumerate(zip(a, b)):
            same(x, y, f"{where}.{i}")
    else:
        check(a == b or a != a and b != b, f"{where}: {a!r} and {b!r}")


def make_state():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW([{"params": list(model[0].parameters()), "lr": 0.1}, {"params": list(model[1].parameters())}])
    model(torch.randn(4, 3)).square().sum().backward()
    optimizer.step()
    tied = torch.arange(6.0).reshape(2, 3)
    return {"model": model.state_dict(), "optim": optimizer.state_dict(), "step": 400, "loss": 0.5, "note": "a", "done": False,
            "best": None, "tied": {"a": tied, "b": tied, "view": tied[1]}}


def load(path):
    if os.path.isdir(path):
        dcp_to_torch_save(path, path + ".pt")
        path += ".pt"
    return torch.load(path, weights_only=True)


EDITS = ["step=0", "loss=3", "note=b=c", "done=true", "optim.param_groups.*.lr=1e-4", "optim.param_groups.0.betas=(0.8, 0.95)"]
TENSORS = ["optim.state.*.step=0", "model.1.num_batches_tracked=-5", "model.1.running_var=0.1", "tied.a=7"]


def edited(state, tensors):
    state = copy.deepcopy(state)
    state.update(step=0, loss=3.0, note="b=c", done=True)
    for group in state["optim"]["param_groups"]:
        group["lr"] = 1e-4
    state["optim"]["param_groups"][0]["betas"] = (0.8, 0.95)
    if tensors:
        for moments in state["optim"]["state"].values():
            moments["step"] = torch.zeros_like(moments["step"])
        state["model"]["1.num_batches_tracked"] = torch.tensor(-5)
        state["model"]["1.running_var"] = torch.full_like(state["model"]["1.running_var"], 0.1)
        state["tied"]["a"] = torch.full((2, 3), 7.0)
    return state


def text_keys(value):
    """As a folder keeps them."""
    if isinstance(value, dict):
        return {str(key): text_keys(item) for key, item in value.items()}
    return [text_keys(item) for item in value] if isinstance(value, list) else value


def edits(tool, folder):
    state = make_state()
    for name in ("s.pt", "s.ranks"):
        path, out = os.path.join(folder, name), os.path.join(folder, "out-" + name)
        if name.endswith(".pt"):
            torch.save(state, path)
        else:
            dcp.save({**state, "model": dict(state["model"])}, checkpoint_id=path)
        before = load(path)
        for number, tensors in enumerate((False, True)):
            made = f"{out}{number}" + (".pt" if name.endswith(".pt") else "")
            run(tool, "set", path, made, *EDITS, *(TENSORS if tensors else []))
            got, want = load(made), edited(before, tensors)
            same(got, want)
            if name.endswith(".pt") and not tensors:
                check(got["tied"]["a"].data_ptr() == got["tied"]["b"].data_ptr(), "tied tensors came apart")
            check("sound" in run(tool, "verify", made), "not sound")
    flat = {"a": torch.ones(3, dtype=torch.bfloat16), "b": torch.ones(2, dtype=torch.uint8), "c": torch.ones(2, dtype=torch.bool)}
    path, out = os.path.join(folder, "f.safetensors"), os.path.join(folder, "g.safetensors")
    save_file(flat, path)
    run(tool, "set", path, out, "a=0.1", "b=255", "c=False")
    same(load_file(out), {"a": torch.full((3,), 0.1, dtype=torch.bfloat16), "b": torch.full((2,), 255, dtype=torch.uint8),
                          "c": torch.zeros(2, dtype=torch.bool)})
    print("edits: as Python makes them, in files and folders")


def refusals(tool, folder):
    path, out = os.path.join(folder, "r.pt"), os.path.join(folder, "ro.pt")
    torch.save(make_state(), path)
    for words, says in [
            (["step=x"], ["error[TYPE]", "'step' is an int, and 'x' is a str", "--retype"]),
            (["step=1.5"], ["'step' is an int, and '1.5' is a float"]),
            (["done=1"], ["'done' is a bool, and '1' is an int"]),
            (["best=3"], ["'best' is None, and '3' is an int"]),
            (["optim.param_groups.0.betas=(1,)"], ["'optim.param_groups.0.betas' is a tuple"]),
            (["steps=0"], ["error[NOT_FOUND]", "no key matches 'steps'; did you mean 'step'?"]),
            (["optim.param_group.*.lr=1"], ["error[NOT_FOUND]", "did you mean"]),
            (["step=0", "st*=1"], ["error[USAGE]", "both set 'step'"]),
            (["step"], ["error[USAGE]", "not of the form KEY=VALUE"]),
            (["=1"], ["error[USAGE]"]),
            (["st[ep=1"], ["error[USAGE]"]),
            ([], ["error[USAGE]"]),
            (["model.1.num_batches_tracked=0.5"], ["error[TYPE]", "int64 []", "cannot hold '0.5'"]),
            (["model.0.weight=1e39"], ["error[TYPE]", "float32 [2, 3]", "cannot hold '1e39'"])]:
        err = run(tool, "set", path, out, *words, expect=2)
        for word in says:
            check(word in err, f"{words}: no {word!r} in {err}")
        check(not os.path.exists(out), f"{words}: written")
    run(tool, "set", path, out, "step=x", "best=0.5", "--retype")
    got = load(out)
    check(got["step"] == "x" and got["best"] == 0.5, "--retype")
    dry = run(tool, "set", path, out, "step=1", "-n", "--force")
    check("step: 400 -> 1" in dry and load(out)["step"] == "x", dry)
    print("refusals: types, names and words")


def make_other():
    """What keys are taken from."""
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5))
    optimizer = torch.optim.AdamW([{"params": list(model[0].parameters()), "lr": 0.3}, {"params": list(model[1].parameters())}])
    model(torch.randn(4, 3)).square().sum().backward()
    optimizer.step()
    tied = torch.arange(4.0)
    return {"model": {**model.state_dict(), "head": torch.randn(2, 5).bfloat16()}, "optim": optimizer.state_dict(), "step": 7,
            "twin": {"a": tied, "b": tied}, "notes": ["x", 3], "pair": (torch.ones(2), {"deep": torch.zeros(1)})}


def with_int_keys(state):
    """As a file keeps them: a folder has text keys."""
    optim = state.get("optim")
    if optim:
        optim["state"] = {int(key): item for key, item in optim["state"].items()}
    return state


def spliced(tool, folder):
    a, b = make_state(), make_other()
    a["empty"] = {}
    paths = {}
    for name, state in (("a", a), ("b", b)):
        state = {**state, "model": dict(state["model"])}
        paths[name, "pt"] = os.path.join(folder, f"splice-{name}.pt")
        paths[name, "dcp"] = os.path.join(folder, f"splice-{name}-ranks")
        paths[name, "ranks"] = os.path.join(folder, f"splice-{name}-of-3")
        torch.save(state, paths[name, "pt"])
        dcp.save(state, checkpoint_id=paths[name, "dcp"])
        run(tool, "reshard", paths[name, "dcp"], paths[name, "ranks"], "--world-size", "3")
    count = 0
    for to in ("pt", "dcp", "ranks"):
        for source in ("pt", "dcp", "ranks"):
            def made(*words):
                nonlocal count
                count += 1
                out = os.path.join(folder, f"spliced{count}" + (".pt" if to == "pt" else ""))
                run(tool, "set", paths["a", to], out, "--take-from", paths["b", source], *words)
                check("sound" in run(tool, "verify", out), "not sound")
                return load(out)
            was, other = load(paths["a", to]), load(paths["b", source])
            if to == "pt":
                with_int_keys(other)
            elif source == "pt":
                other = text_keys(other)
            # The model of the other one, in the place of the first one's; the key that is new comes last.
            want = {**was, "model": other["model"]}
            same(made("--take", "model.**", "--replace"), want)
            # The whole optimizer, into what was left of the first one.
            got = made("--drop", "optim.**", "--take", "optim.**")
            same(got, {**was, "optim": other["optim"]})
            if to == "pt":
                parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((5, 3), (5,), (5,), (5,))]
                fresh = torch.optim.AdamW([{"params": parameters[:2]}, {"params": parameters[2:]}])
                fresh.load_state_dict(got["optim"])
                check(fresh.state[parameters[0]]["step"] == 1 and fresh.param_groups[0]["lr"] == 0.3, "loaded otherwise")
            # New keys, tied ones among them, a list, and a value; and a value of the first one is set as well.
            got = made("--take", "twin.*", "--take", "pair.**", "--take", "notes", "--drop", "tied.**", "step=11")
            left = {key: item for key, item in was.items() if key != "tied"}
            same(got, {**left, "step": 11, "twin": other["twin"], "notes": other["notes"], "pair": other["pair"]})
            if to == "pt" and source == "pt":
                check(got["twin"]["a"].data_ptr() == got["twin"]["b"].data_ptr(), "tied tensors came apart")
            # A tensor that was taken is set, and its twin stays.
            got = made("--take", "twin.*", "twin.a=3")
            same(got["twin"], {"a": torch.full((4,), 3.0), "b": torch.arange(4.0)})
            # A value alone.
            same(made("--take", "step", "--replace"), {**was, "step": 7})
    # Into a state dict whose optimizer has no state yet, and out of safetensors into HDF5's place of a tensor.
    fresh = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(5, 3)), torch.nn.Parameter(torch.zeros(5))])
    path, out = os.path.join(folder, "fresh.pt"), os.path.join(folder, "filled.pt")
    torch.save({"optim": fresh.state_dict(), "w": torch.ones(2)}, path)
    run(tool, "set", path, out, "--take-from", paths["b", "ranks"], "--take", "optim.state.[01].*")
    got, want = load(out), with_int_keys(load(paths["b", "dcp"]))["optim"]["state"]
    same(got["optim"]["state"], {0: want[0], 1: want[1]})
    fresh.load_state_dict(got["optim"])
    flat = os.path.join(folder, "taken.safetensors")
    save_file({"w": torch.full((3, 2), 2.5, dtype=torch.float16), "v": torch.ones(1)}, flat)
    run(tool, "set", path, out, "--take-from", flat, "--take", "w", "--take", "v", "--replace", "--force")
    same(load(out), {"optim": torch.load(path)["optim"], "w": torch.full((3, 2), 2.5, dtype=torch.float16), "v": torch.ones(1)})
    print(f"keys: {count} results as Python's, files and folders of 1 and 3 ranks from each other")
    return paths


def splice_refusals(tool, folder, paths):
    a, b, out = paths["a", "pt"], paths["b", "ranks"], os.path.join(folder, "so.pt")
    odd = os.path.join(folder, "odd.pt")
    torch.save({"step": {"deep": 1}, "empty": {}, "tied": torch.ones(1), "optim": {"param_groups": {"lr": 2}}, "twin": [1, torch.ones(1), {"a": 2}]}, odd)
    take = ["--take-from", b, "--take"]
    for words, says in [
            (["--drop", "modl.**"], ["error[NOT_FOUND]", "no key matches 'modl.**'"]),
            (["--drop", "stp"], ["did you mean 'step'?"]),
            ([*take, "hed"], ["error[NOT_FOUND]", "splice-b-of-3: no key matches 'hed'"]),
            ([*take, "twin.c"], ["did you mean 'twin.a'?"]),
            ([*take, "model.0.*"], ["error[REKEY_COLLISION]", "'model.0.weight' is float32 [5, 3]", "has float32 [2, 3] there; 1 more in both", "--replace"]),
            ([*take, "step"], ["error[REKEY_COLLISION]", "'step' is a value", "has a value there"]),
            (["--take", "step"], ["error[USAGE]", "--take needs --take-from"]),
            (["--take-from", b], ["error[USAGE]", "--take-from needs --take"]),
            (["step=1", "--replace"], ["error[USAGE]"]),
            (["--drop", "step", "step=1"], ["error[NOT_FOUND]", "no key matches 'step'"]),
            (["--drop", "[", "step=1"], ["error[USAGE]"]),
            (["--take-from", odd, "--take", "step.*"], ["error[KEY]", "'step.deep' lies inside 'step', which is a value"]),
            (["--take-from", odd, "--take", "tied"], ["error[KEY]", "'tied' is float32 [1], but", "has keys inside it"]),
            (["--take-from", odd, "--take", "optim.param_groups.lr"], ["error[KEY]", "'lr' is a key, but", "has a list there"]),
            (["--take-from", odd, "--take", "twin.2.a"], ["error[KEY]", "'twin.2.a' would become item 0 of its list"]),
            (["--take-from", os.path.join(folder, "nowhere"), "--take", "x"], ["error[NOT_FOUND]", "nowhere"]),
            (["--take-from", out, "--take", "x"], ["error[", "so.pt"])]:
        err = run(tool, "set", a, out, *words, expect=2)
        for word in says:
            check(word in err, f"{words}: no {word!r} in {err}")
        check(not os.path.exists(out), f"{words}: written")
    # A broken byte of the other one is noticed, unless nothing of it is taken; one of the first is of no account where it is replaced.
    for name in sorted(os.listdir(b)):
        if name.endswith(".distcp"):
            with open(os.path.join(b, name), "r+b") as file:
                data = file.read()
                at = data.find(torch.arange(4.0).numpy().tobytes()[8:])
                if at > 0:
                    file.seek(at)
                    file.write(bytes([data[at] ^ 1]))
    err = run(tool, "set", a, out, *take, "twin.*", expect=2)
    check("error[ZIP_CRC]" in err and "twin" in err and not os.path.exists(out), err)
    run(tool, "set", a, out, *take, "notes")
    check(load(out)["notes"] == ["x", 3], "notes")
    print("refusals: keys of two checkpoints")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        edits(options.tool, folder)
        refusals(options.tool, folder)
        splice_refusals(options.tool, folder, spliced(options.tool, folder))


if __name__ == "__main__":
    main()
