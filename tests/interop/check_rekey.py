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
import json
import os
import shutil
import sys
import tempfile
import traceback
import warnings

warnings.simplefilter("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(HERE)

import torch
from torch import nn

import rekey_tool
from rekey_checks import as_pytorch, consolidated, flattened, going_on, lightning, uncertain
from rekey_models import takes
from rekey_tool import Failure, check, load, run, same, write
from rename_checks import elsewhere, halves, neighbours, prefixes, swaps_and_levels, unreadable_names


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
    write("rekey", ckpt, names + "-id", "--key-by", "id")
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
    write("rekey", names + "-id", names + "-name", "--key-by", "name", "--names", names + ".txt")
    same(load(names + "-name"), load(ckpt), f"{case} back")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--tool", required=True)
    args = parser.parse_args()
    rekey_tool.TOOL = os.path.abspath(args.tool)
    checks = [(f.__name__, f, ()) for f in (
        as_pytorch, going_on, consolidated, lightning, flattened, uncertain,
        prefixes, swaps_and_levels, halves, unreadable_names, neighbours, elsewhere)]
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
