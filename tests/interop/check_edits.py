#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `fsdp-ckpt set` with the same edits in Python, on checkpoints that PyTorch wrote.

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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        edits(options.tool, folder)
        refusals(options.tool, folder)


if __name__ == "__main__":
    main()
