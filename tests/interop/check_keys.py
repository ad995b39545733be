#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks dict keys that are not texts against PyTorch: those written by torch.save, and DCP's form of them.

  python check_keys.py --tool PATH

1. consolidate keeps each key's type: torch.load gives the same dict.    2. inspect names them as DCP's flatten_state_dict does.
3. shard writes those names.      4. 1 and '1' are two keys: kept apart in .pt and by diff, refused if names are only texts, as by DCP.
"""
import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import warnings

warnings.simplefilter("ignore")
import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

KEYS = [0, -7, 2**40, 2**70, -(2**64), True, None, 1.5, 0.1, -0.0, 1e16, 1e22, 1e-5, 123456.789, float("inf"), 3.0, "text", "", "a.b", "it's",
        b"x\x00'\xff", (), (1,), (1, 2), ("a",), ("a", (2, "it's")), (None, 1.0, b"y"), frozenset(), frozenset({3}), frozenset({"one"}),
        torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.device("cpu"), torch.device("cuda", 1), torch.device("meta"), torch.Size([2, 3])]


class Tool:
    def __init__(self, path, tmp):
        self.path, self.tmp = path, tmp

    def run(self, *args, expect=0):
        done = subprocess.run([self.path, *map(str, args)], capture_output=True, text=True)
        assert done.returncode == expect, f"{' '.join(map(str, args))}: exit {done.returncode}, expected {expect}\n{done.stderr}{done.stdout}"
        return done.stdout + done.stderr

    def saved(self, name, obj):
        path = os.path.join(self.tmp, name)
        torch.save(obj, path)
        return path

    def again(self, path, name="again.pt"):
        out = os.path.join(self.tmp, name)
        self.run("consolidate", path, out, "--force", "--no-sync")
        return torch.load(out, weights_only=False)


def typed(x):
    """Equal for equal keys of equal types in the same order, and equal tensors."""
    if isinstance(x, torch.Tensor):
        return ("tensor", x.tolist())
    if isinstance(x, dict):
        return (type(x).__name__, [(typed_key(k), typed(v)) for k, v in x.items()])
    return (type(x).__name__, repr(x))


def typed_key(k):
    return (type(k).__name__, repr(k), [typed_key(i) for i in k] if isinstance(k, tuple) else None)


def each_key_keeps_its_type_and_name(tool):
    for number, key in enumerate(KEYS):
        for value in torch.tensor([float(number)]), number:
            state = {"state": {key: {"x": value}, "other": torch.ones(1)}}
            path = tool.saved("key.pt", state)
            assert typed(tool.again(path)) == typed(state), f"{key!r}: {typed(tool.again(path))}"
            said = json.loads(tool.run("inspect", path, "--json"))
            names = {t["key"] for t in said["tensors"]} | {v["key"] for v in said["values"]}
            assert names == set(flatten_state_dict(state)[0]), f"{key!r}: {names}, expected {set(flatten_state_dict(state)[0])}"


def all_of_them_in_one_dict(tool):
    state = {"state": {key: torch.tensor([float(i)]) for i, key in enumerate(KEYS)}}
    path = tool.saved("all.pt", state)
    assert typed(tool.again(path)) == typed(state)
    tool.run("diff", path, os.path.join(tool.tmp, "again.pt"))
    folder = os.path.join(tool.tmp, "folder")
    tool.run("shard", path, folder, "--world-size", 2, "--force")
    want = flatten_state_dict(state)
    metadata = FileSystemReader(folder).read_metadata()
    assert set(metadata.state_dict_metadata) == set(want[0]), set(metadata.state_dict_metadata) ^ set(want[0])
    for key, tensor_path in want[1].items():
        assert tuple(metadata.planner_data[key]) == tuple(tensor_path), key
    tool.run("diff", path, folder)


def keys_that_read_alike_stay_two(tool):
    pairs = [(1, "1"), (1.0, "1.0"), (None, "None"), (torch.float32, "torch.float32"), (True, "True"), ((1,), "(1,)"), (torch.device("cpu"), "cpu")]
    for a, b in pairs:
        tensors = torch.tensor([1.0]), torch.tensor([2.0])
        orders = [tool.saved(f"order{i}.pt", {"s": dict(order)}) for i, order in enumerate(itertools.permutations(zip((a, b), tensors)))]
        for path in orders:
            assert typed(tool.again(path)) == typed(torch.load(path, weights_only=False)), (a, b)
            assert len(json.loads(tool.run("inspect", path, "--json"))["tensors"]) == 2
            tool.run("diff", path, os.path.join(tool.tmp, "again.pt"))
            for out in "names.safetensors", "names":   # only texts
                tool.run("consolidate" if "." in out else "shard", path, os.path.join(tool.tmp, out), *([] if "." in out else ["--world-size", 1]), expect=2)
                assert not os.path.exists(os.path.join(tool.tmp, out))
            try:
                flatten_state_dict(torch.load(path, weights_only=False))
                raise AssertionError("PyTorch flattens it")
            except ValueError:
                pass
        tool.run("diff", *orders)   # the same keys hold the same values
        one, other = tool.saved("one.pt", {"s": {a: tensors[0]}}), tool.saved("other.pt", {"s": {b: tensors[0]}})
        assert "other types" in tool.run("diff", one, other, expect=1), (a, b)
        swapped = tool.saved("swapped.pt", {"s": {a: tensors[1], b: tensors[0]}})
        tool.run("diff", orders[0], swapped, expect=1)


CHECKS = [each_key_keeps_its_type_and_name, all_of_them_in_one_dict, keys_that_read_alike_stay_two]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--tool", required=True)
    args = ap.parse_args()
    passed = True
    for check in CHECKS:
        with tempfile.TemporaryDirectory() as tmp:
            try:
                check(Tool(args.tool, tmp))
                print(f"PASS  {check.__name__}", flush=True)
            except AssertionError as why:
                passed = False
                print(f"FAIL  {check.__name__}: {why}", flush=True)
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
