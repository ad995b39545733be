#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks fsdp-ckpt convert against PyTorch and the safetensors library.

  python check_convert.py CASE... --tool PATH      a CASE holds ckpt/, or full.pt

A checkpoint's content is what PyTorch loads from its consolidated file; check_consolidate.py compares that with the truth.
1. to .pt and through .h5 and back: the same object, nested and typed as it was.
2. through .safetensors: the tensors, as the safetensors library and PyTorch read them.
3. to a DCP folder of 1 and 3 ranks: PyTorch's own dcp_to_torch_save converts it to the same as a folder that PyTorch saved of
   the same object.
4. --dtype: the result of Tensor.to.       5. --dry-run of each names the files and bytes that are then written.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import traceback
import warnings

warnings.simplefilter("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [HERE, os.path.join(os.path.dirname(HERE), "support")]

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import sample
import truth

IN_SAFETENSORS = {"torch." + n for n in """float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool uint16 uint32 uint64
complex64 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2""".split()}
FLOATS = {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
          torch.float8_e4m3fnuz, torch.float8_e5m2fnuz}


def numbers_of(tensor):
    """Pairs of four bits, which Tensor.to does not take, as numbers: the lower bits first, by the values of E2M1 in the OCP's MX specification."""
    if "float4" not in str(tensor.dtype):
        return tensor
    pairs = tensor.view(torch.uint8)
    codes = torch.stack([pairs & 15, pairs >> 4], -1).flatten(-2).long()
    return torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])[codes & 7] * torch.where(codes > 7, -1.0, 1.0)


class Failure(Exception):
    pass


def run(tool, *args):
    done = subprocess.run([tool, *args], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure(f"exit {done.returncode}: {' '.join([tool, *args])}\n{done.stderr[-1500:]}")
    return done.stdout


def convert(tool, source, out, *args):
    """Converts, and compares the dry run with the result."""
    plan = json.loads(run(tool, "convert", source, out, *args, "--dry-run", "--json"))
    if os.path.exists(out):
        raise Failure(f"{out}: a dry run wrote it")
    run(tool, "convert", source, out, *args, "--no-sync")
    if os.path.isfile(out):
        found = {os.path.basename(out): os.path.getsize(out)}
    else:
        found = {os.path.relpath(os.path.join(at, n), out): os.path.getsize(os.path.join(at, n))
                 for at, _, names in os.walk(out) for n in names}
    planned = {f["name"]: f["bytes"] for f in plan["files"]}
    if planned != found:
        raise Failure(f"{out}: the dry run said {planned}, written was {found}")


def load(path):
    try:
        return torch.load(path, weights_only=True)
    except Exception:
        return torch.load(path, weights_only=False)


def compare(what, want, got):
    lines = truth.diff(want, got)
    if lines:
        raise Failure(f"{what}: {len(lines)} differences\n  " + "\n  ".join(lines[:20]))


def leaves(x, path=()):
    if isinstance(x, dict):
        for k, v in x.items():
            yield from leaves(v, path + (str(k),))
    elif isinstance(x, (list, tuple)) and not isinstance(x, torch.Size):
        for i, v in enumerate(x):
            yield from leaves(v, path + (str(i),))
    else:
        yield ".".join(path), x


def sorted_tree(tree):
    if "container" not in tree:
        return tree
    return {**tree, "items": sorted(([k, sorted_tree(v)] for k, v in tree["items"]), key=lambda item: item[0])}


def is_plain(t):
    return t.layout is torch.strided and not t.is_quantized and t.device.type == "cpu" and not t.is_nested


def can_be_saved(x):
    """Returns whether PyTorch's DCP accepts the object: text keys that stay distinct when flattened, only dense tensors."""
    if not isinstance(x, dict):
        return False
    keys = [k for k, _ in leaves(x)]
    return len(set(keys)) == len(keys) and all(not isinstance(v, torch.Tensor) or is_plain(v) for _, v in leaves(x))


class Case:
    def __init__(self, folder, tool, tmp):
        self.folder, self.tool, self.tmp = folder, tool, tmp
        full = os.path.join(folder, "full.pt")
        self.path = full if os.path.exists(full) else os.path.join(folder, "ckpt")
        self.allow = []
        for name in ("truth.json", "full_truth.json"):
            path = os.path.join(folder, name)
            if os.path.exists(path):
                with open(path, encoding="utf-8") as f:
                    doc = json.load(f)
                self.refused = doc.get("refused")
                self.allow = [x for g in doc.get("allow", []) for x in ("--allow-global", g)]
                break
        else:
            self.refused = None
        self.full = os.path.join(tmp, "full.pt")

    def out(self, name):
        return os.path.join(self.tmp, name)

    def to(self, source, name, *args):
        convert(self.tool, source, self.out(name), *args, *self.allow)
        return self.out(name)

    def start(self):
        self.to(self.path, "full.pt")
        self.object = load(self.full)

    def hdf5(self):
        there = self.to(self.full, "there.h5")
        back = self.to(there, "back.pt")
        compare("through .h5 and back", truth.describe(self.object), truth.describe(load(back)))
        if self.path != self.full:
            direct = self.to(self.to(self.path, "direct.h5"), "direct.pt")
            compare("to .h5 and to .pt", truth.describe(self.object), truth.describe(load(direct)))

    def safetensors(self):
        tensors = {k: v for k, v in leaves(self.object) if isinstance(v, torch.Tensor)}
        good = {k: v for k, v in tensors.items() if k and is_plain(v) and str(v.dtype) in IN_SAFETENSORS}
        if not good:
            return
        skip = [x for k in tensors if k not in good for x in ("--exclude", "".join("\\" + c if c in "*?[]\\" else c for c in k))]
        there = self.to(self.full, "there.safetensors", "--drop-values", *skip)
        want = {k: truth.describe(v) for k, v in good.items()}
        for t in want.values():
            t.pop("class", None)
        read = {k: truth.describe(v) for k, v in load_file(there).items()}
        wrong = [k for k in read if read[k] != want.get(k)]
        if wrong:
            raise Failure(f"the safetensors library reads otherwise: {wrong[:5]}")
        back = load(self.to(there, "tensors.pt"))
        found = {k: truth.describe(v) for k, v in back.items()}
        # Keeps one name of tied tensors.
        missing = [k for k in want if k not in found and want[k] not in found.values()]
        wrong = [k for k in found if found[k] != want.get(k)]
        if missing or wrong:
            raise Failure(f"through .safetensors and back: missing {missing[:5]}, different {wrong[:5]}")

    def folder_of(self, world):
        if not can_be_saved(self.object):
            return
        theirs = self.out("theirs")
        if not os.path.exists(theirs):
            dcp.save(self.object, storage_writer=dcp.FileSystemWriter(theirs), no_dist=True)
            dcp_to_torch_save(theirs, theirs + ".pt")
        ours = self.to(self.path, f"ours{world}", "--to", "dcp", "--world-size", str(world))
        findings = json.loads(run(self.tool, "verify", ours, "--json", *self.allow))["findings"]
        if any(f["code"] != "NAME" for f in findings):   # unreadable names are kept as they are
            raise Failure(f"verify: {findings}")
        dcp_to_torch_save(ours, self.out("ours.pt"))
        want, got = (sorted_tree(truth.describe(torch.load(p, weights_only=False))) for p in (theirs + ".pt", self.out("ours.pt")))
        compare(f"a folder of {world} ranks", want, got)

    def dtype(self):
        picked = {k: v for k, v in leaves(self.object) if isinstance(v, torch.Tensor) and is_plain(v)}
        for name in ("bfloat16", "float64"):
            got = dict(leaves(load(self.to(self.full, f"{name}.pt", "--dtype", name))))
            wrong = []
            for k, v in picked.items():
                want = numbers_of(v.detach())
                if want.dtype in FLOATS and k.split(".")[-1] != "step":
                    want = want.to(getattr(torch, name))
                if truth.tensor_bytes(want) != truth.tensor_bytes(got[k]) or want.dtype != got[k].dtype:
                    # The payload of a converted NaN is unspecified.
                    if not torch.equal(torch.nan_to_num(want.float()), torch.nan_to_num(got[k].detach().float())):
                        wrong.append(k)
            if wrong:
                raise Failure(f"--dtype {name}: not what Tensor.to gives: {wrong[:5]}")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("case", nargs="+")
    ap.add_argument("--tool", required=True)
    ap.add_argument("--only", help="one step: hdf5, safetensors, ...")
    args = ap.parse_args()
    failed = steps = 0
    cases = sample.taken(args.case)
    for folder in cases:
        name = "/".join(os.path.abspath(folder).split(os.sep)[-2:])
        with tempfile.TemporaryDirectory() as tmp:
            case = Case(os.path.abspath(folder), os.path.abspath(args.tool), tmp)
            if case.refused:
                continue   # check_consolidate.py checks these
            plan = {"to .pt": case.start, "hdf5": case.hdf5, "safetensors": case.safetensors, "dcp 1": lambda: case.folder_of(1),
                    "dcp 3": lambda: case.folder_of(3), "dtype": case.dtype}
            for step, check in plan.items():
                if args.only and step not in ("to .pt", args.only):
                    continue
                steps += 1
                try:
                    check()
                except Exception as why:
                    failed += 1
                    print(f"FAIL  {name}: {step}: {why if isinstance(why, Failure) else traceback.format_exc()}", flush=True)
    print(f"{len(cases)} checkpoints, {steps} steps, {failed} failed")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
