#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares fsdp-ckpt with PyTorch on one checkpoint.

  python check_consolidate.py CASE... --tool PATH      a CASE holds ckpt/ and truth.json, or full.pt and full_truth.json

1.  `verify` reports nothing.               2.  `inspect --json` agrees with `.metadata` as PyTorch reads it.
3. `consolidate` to .pt loads with plain torch.load as exactly the truth: nesting, container types, order, dtype, shape, bytes.
4. `consolidate` to .safetensors, whole and split with an index, holds the same tensors, read by the safetensors library.
"""
import argparse
import contextlib
import io
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
sys.path += [HERE, os.path.join(os.path.dirname(HERE), "support")]   # HERE: for objects.Config in a pickle

import torch
from safetensors import safe_open

import tried
import truth

# Dtypes of PyTorch that the safetensors format names.
IN_SAFETENSORS = {"torch." + n for n in """float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool uint16 uint32 uint64 complex64
float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2""".split()}
SPLIT_BYTES = 4096


class Failure(Exception):
    pass


class Case:
    def __init__(self, folder, tool):
        self.folder, self.tool = folder, tool
        self.is_file = os.path.exists(os.path.join(folder, "full.pt"))
        self.path = os.path.join(folder, "full.pt" if self.is_file else "ckpt")
        name = os.path.join(folder, "full_truth.json" if self.is_file else "truth.json")
        self.truth = None
        if os.path.exists(name):
            with open(name, encoding="utf-8") as f:
                self.truth = json.load(f)
        self.allow = [x for g in (self.truth or {}).get("allow", []) for x in ("--allow-global", g)]

    def run(self, verb, *args, expect=0, allow=True):
        command = [self.tool, verb, *args, *(self.allow if allow else [])]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != expect:
            raise Failure(f"{verb}: exit {done.returncode}, expected {expect}\n  {' '.join(command)}\n{done.stderr[-2000:]}{done.stdout[-2000:]}")
        return done.stdout if expect == 0 else done.stdout + done.stderr


def compare(what, want, got):
    lines = truth.diff(want, got)
    if lines:
        raise Failure(f"{what}: {len(lines)} differences\n  " + "\n  ".join(lines[:20]))


def compare_flat(want, got):
    """For a truth without a tree: the paths in order, and the value at each."""
    keep = ("dtype", "shape", "sha256", "value", "empty")
    want = [(k, {x: v[x] for x in keep if x in v}) for k, v in want.items()]
    got = [(k, {x: v[x] for x in keep if x in v}) for k, v in got.items()]
    w, g = dict(want), dict(got)
    lines = [f"{k}: missing" for k in w if k not in g] + [f"{k}: not expected" for k in g if k not in w]
    lines += [f"{k}: expected {w[k]}, found {g[k]}" for k in w if k in g and w[k] != g[k]]
    if not lines and [k for k, _ in want] != [k for k, _ in got]:
        first = next(i for i, (a, b) in enumerate(zip(want, got)) if a[0] != b[0])
        lines = [f"order: place {first}: expected {want[first][0]!r}, found {got[first][0]!r}"]
    if lines:
        raise Failure("the .pt differs from the truth\n  " + "\n  ".join(lines[:20]))


def in_order(tree):
    return {**tree, "items": sorted(tree["items"], key=lambda item: item[0])}


def with_integer_ids(tree):
    """Parts that PyTorch's own conversion leaves under text, so that its optimizers do not find them: numbered parameters of a state."""
    items = dict(tree.get("items", ()))
    ids = [p["value"] for _, g in items.get("'param_groups'", {}).get("items", ()) for _, p in dict(g.get("items", ())).get("'params'", {}).get("items", ())
           if p.get("class") == "int"] if "'state'" in items else []
    if "items" not in tree:
        return tree
    inner = {k: with_integer_ids(v) for k, v in items.items()}
    if ids:
        inner["'state'"] = {**items["'state'"], "items": [[k.strip("'") if k.strip("'") in ids else k, v] for k, v in items["'state'"]["items"]]}
    return {**tree, "items": [[k, inner[k]] for k, _ in tree["items"]]}


def storages(x, path=(), out=None):
    """Returns the places that share a storage: PyTorch sees tied tensors and views this way."""
    out = {} if out is None else out
    if isinstance(x, torch.Tensor):
        if x.layout is torch.strided and x.numel():
            out.setdefault(x.untyped_storage().data_ptr(), []).append((path, x.storage_offset(), x.stride()))
    elif isinstance(x, dict):
        for k, v in x.items():
            storages(v, path + (k,), out)
    elif isinstance(x, (list, tuple)):
        for i, v in enumerate(x):
            storages(v, path + (i,), out)
    return sorted((g for g in out.values() if len(g) > 1), key=str)


def check_pt(case, tmp):
    out = os.path.join(tmp, "out.pt")
    if case.allow:
        case.run("consolidate", case.path, out, expect=2, allow=False)
        if os.path.exists(out):
            raise Failure("an output with a global that is not allowed was written")
    case.run("consolidate", case.path, out)
    weights_only = case.truth["weights_only"] if "weights_only" in (case.truth or {}) else loads_weights_only(case)
    got = torch.load(out, weights_only=weights_only)
    if weights_only and not case.is_file:   # a plain reader may map the file too
        truth_of_mapped = truth.describe(torch.load(out, weights_only=True, mmap=True))
        compare("mmap", truth.describe(got), truth_of_mapped)
    if case.truth is None:
        return got
    if not case.is_file and "tree" in case.truth:
        case.truth["tree"] = with_integer_ids(case.truth["tree"])
    if not case.truth.get("ordered", True):
        compare("the .pt differs from the truth", in_order(case.truth["tree"]), in_order(truth.describe(got)))
    elif "tree" in case.truth:
        compare("the .pt differs from the truth", case.truth["tree"], truth.describe(got))
    else:
        compare_flat(case.truth["items"], truth.flat(got))
    if case.is_file:
        source = torch.load(case.path, weights_only=False)
        if storages(source) != storages(got):
            raise Failure(f"shared storages: expected {storages(source)}, found {storages(got)}")
    return got


def loads_weights_only(case):
    """A full file by PyTorch shows it itself; for a folder, ask for it, and accept only values that PyTorch refuses too."""
    if not case.is_file:
        return case.truth is None or not any(str(v.get("class", "")).startswith("numpy") for v in leaves(case.truth.get("tree", {})))
    try:
        torch.load(case.path, weights_only=True)
        return True
    except Exception:
        return False


def leaves(tree):
    if "container" in tree:
        for _, v in tree["items"]:
            yield from leaves(v)
    else:
        yield tree


def read_metadata(case):
    """`.metadata` as this PyTorch reads it, or None if it cannot (other versions' folders)."""
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.metadata import Metadata
    if case.is_file or not os.path.exists(os.path.join(case.path, ".metadata")):
        return None
    try:
        meta = FileSystemReader(case.path).read_metadata()
        return meta if isinstance(meta, Metadata) else None
    except Exception as why:
        print(f"  .metadata not compared: this PyTorch cannot read it ({str(why).splitlines()[0][:80]})")
        return None


def check_inspect(case):
    said = json.loads(case.run("inspect", case.path, "--json"))
    if said.get("schema") != "fsdp-ckpt/inspect/1":
        raise Failure(f"inspect: schema {said.get('schema')!r}")
    meta = read_metadata(case)
    if meta is None:
        return said
    tensors = {k: v for k, v in meta.state_dict_metadata.items() if hasattr(v, "chunks")}
    where = {(i.fqn, tuple(i.offset)): s for i, s in meta.storage_data.items() if i.offset is not None}
    plan = meta.planner_data or {}

    def expected(key, t):
        chunks = sorted([list(c.offsets), list(c.sizes), where[key, tuple(c.offsets)].relative_path] for c in t.chunks)
        return {"dtype": str(t.properties.dtype)[len("torch."):], "shape": list(t.size), "path": list(plan.get(key, (key,))), "chunks": chunks}

    def found(t):
        chunks = sorted([c["offset"], c["shape"], c["file"]] for c in t["chunks"])
        return {"dtype": t["dtype"], "shape": t["shape"], "path": t["path"], "chunks": chunks}

    want, got = {k: expected(k, t) for k, t in tensors.items()}, {t["key"]: found(t) for t in said["tensors"]}
    lines = [f"{k!r}: expected {want.get(k)}, found {got.get(k)}" for k in {**want, **got} if want.get(k) != got.get(k)]
    values = sorted(k for k in meta.state_dict_metadata if k not in tensors)
    beside = set()
    if os.path.exists(os.path.join(case.path, "meta.pt")):   # Lightning's, whose members are values too
        beside = set(map(str, torch.load(os.path.join(case.path, "meta.pt"), weights_only=False)))
    if values != sorted(v["key"] for v in said["values"] if v["key"] not in beside):
        lines.append(f"values: expected {values}, found {sorted(v['key'] for v in said['values'])}")
    if lines:
        raise Failure("inspect differs from .metadata\n  " + "\n  ".join(lines[:10]))
    return said


def at_path(obj, path):
    """Paths have keys as text, as PyTorch flattens them; in a torch.save file a key may be an int."""
    for step in path:
        obj = obj[int(step) if isinstance(obj, dict) and step not in obj else step]
    return obj


def inside(key, x):
    """The parts of a value: tensors by key, and None for values that are not tensors that safetensors can hold."""
    members = x.items() if isinstance(x, dict) else enumerate(x) if isinstance(x, (list, tuple)) and not isinstance(x, torch.Size) else ()
    if isinstance(x, torch.Tensor) and x.layout is torch.strided and not x.is_quantized and not x.is_meta:
        yield key, x
    elif not members:
        yield key, None
    for k, v in members:
        yield from inside(f"{key}.{k}" if key else str(k), v)


def check_safetensors(case, tmp, said, full):
    """`full` is the value compared with the truth in step 3."""
    want = {t["key"]: truth.describe(at_path(full, t["path"])) for t in said["tensors"]}
    values = False
    for value in said["values"]:
        for key, tensor in inside(value["key"], at_path(full, value["path"])):
            values = values or tensor is None
            if tensor is not None:
                want[key] = truth.describe(tensor)
    for t in want.values():
        t.pop("class", None)
    unfit = [k for k, t in want.items() if t["dtype"] not in IN_SAFETENSORS or "layout" in t or "qscheme" in t]
    skip = [x for k in unfit for x in ("--exclude", "".join("\\" + c if c in "*?[]\\" else c for c in k))]
    want = {k: t for k, t in want.items() if k not in unfit}
    if not want or "" in want:   # nothing, or a bare tensor without a name
        return
    drop = ["--drop-values"] if values or case.is_file else []
    if values:
        case.run("consolidate", case.path, os.path.join(tmp, "refused.safetensors"), *skip, expect=2)
    if unfit:
        case.run("consolidate", case.path, os.path.join(tmp, "refused.safetensors"), *drop, expect=2)
    if os.path.exists(os.path.join(tmp, "refused.safetensors")):
        raise Failure("safetensors: a refused output was written")
    one = os.path.join(tmp, "out.safetensors")
    case.run("consolidate", case.path, one, *skip, *drop)
    compare_named("the .safetensors differs", want, read_safetensors(one))
    split = os.path.join(tmp, "split")
    case.run("consolidate", case.path, split, "--to", "safetensors", "--max-shard-size", str(SPLIT_BYTES), *skip, *drop)
    with open(os.path.join(split, "model.safetensors.index.json"), encoding="utf-8") as f:
        index = json.load(f)
    got = {}
    for name in sorted(set(index["weight_map"].values())):
        part = read_safetensors(os.path.join(split, name))
        wrong = [k for k in part if index["weight_map"].get(k, name) != name]   # names of tied tensors are not in the index
        if wrong:
            raise Failure(f"split: {name} holds {wrong[:5]}, which the index does not place there")
        if len(part) > 1 and sum(nbytes(t) for t in part.values()) > SPLIT_BYTES:
            raise Failure(f"split: {name} is larger than asked for")
        got.update(part)
    if sorted(os.listdir(split)) != sorted({*index["weight_map"].values(), "model.safetensors.index.json"}):
        raise Failure(f"split: files {sorted(os.listdir(split))}")
    compare_named("the split safetensors differ", want, got)
    total = sum(nbytes(want[k]) for k in index["weight_map"])
    if index["metadata"]["total_size"] != total:
        raise Failure(f"split: total_size {index['metadata']['total_size']}, expected {total}")


def nbytes(t):
    n = getattr(torch, t["dtype"][len("torch."):]).itemsize
    for s in t["shape"]:
        n *= s
    return n


def read_safetensors(path):
    """The tensors, also under the names that the file's metadata maps to another tensor: {"tied": "base"}."""
    with safe_open(path, framework="pt") as f:
        out = {k: truth.describe(f.get_tensor(k)) for k in f.keys()}
        for name, same in (f.metadata() or {}).items():
            if same in out and name != "format":
                out[name] = out[same]
        return out


def compare_named(what, want, got):
    as_tree = lambda x: {"container": "dict", "items": sorted([k, v] for k, v in x.items())}  # noqa: E731
    compare(what, as_tree(want), as_tree(got))


def check_refusal(case, tmp):
    """PyTorch cannot read it back either: nothing is damaged, but joining it is refused by name, and nothing is written."""
    out = os.path.join(tmp, "out.pt")
    case.run("verify", case.path)
    said = case.run("consolidate", case.path, out, expect=2)
    if case.truth["refused"] not in said:
        raise Failure(f"consolidate: does not say {case.truth['refused']!r}: {said}")
    if os.path.exists(out):
        raise Failure("an output was written")


def unreadable(key):
    return "" in key.split(".") or not key.isprintable()


def check_verify(case):
    if case.allow:
        said = case.run("verify", case.path, expect=1, allow=False)
        if not all(name in said for name in case.truth["allow"]):
            raise Failure(f"verify does not name the globals {case.truth['allow']}: {said}")
    case.run("verify", case.path)
    findings = json.loads(case.run("verify", case.path, "--json")).get("findings")
    odd = [f for f in findings if f["code"] == "NAME" and f["severity"] == "warning" and unreadable(f["key"])]
    findings = [f for f in findings if f not in odd]
    warnings = [f["code"] for f in findings if f["severity"] == "warning"]
    if len(warnings) != len(findings) or warnings != (case.truth or {}).get("warnings", []):
        raise Failure(f"verify --json: findings {findings}")


def check(case):
    """Prints a line for each step; returns whether all passed."""
    with tempfile.TemporaryDirectory() as tmp:
        state, passed = {}, True

        def consolidate():
            state["full"] = check_pt(case, tmp)

        def safetensors():
            if len(state) != 2:
                raise Failure("not possible without what failed above")
            check_safetensors(case, tmp, state["said"], state["full"])

        steps = {"verify": lambda: check_verify(case), "inspect": lambda: state.update(said=check_inspect(case)),
                 "consolidate to .pt": consolidate, "consolidate to .safetensors": safetensors}
        if "refused" in (case.truth or {}):
            steps = {"refusal": lambda: check_refusal(case, tmp)}
        for name, step in steps.items():
            try:
                step()
                print(f"ok    {name}")
            except Exception as why:
                passed = False
                print(f"FAIL  {name}: {why if isinstance(why, Failure) else traceback.format_exc()}")
        return passed


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("case", nargs="+")
    ap.add_argument("--tool", required=True)
    ap.add_argument("--results", help="folder for a file a case, named by its last two path components: PASS or FAIL, then the steps")
    args = ap.parse_args()
    if args.results:
        shutil.rmtree(args.results, ignore_errors=True)   # so that no result of an earlier run counts for this run
    all_passed = True
    for folder in args.case:
        folder = os.path.abspath(folder)
        name = ".".join(folder.split(os.sep)[-2:])
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            case = Case(folder, args.tool)
            passed = check(case)
        all_passed &= passed
        if passed and case.truth and "refused" in case.truth:
            tried.record_case(folder, "verify", "sound; `consolidate` refuses by name what the files do not tell")
        elif passed:
            tried.record_case(folder, "verify, inspect, consolidate", "bit for bit what its own code reads")
        print(f"{'PASS' if passed else 'FAIL'}  {name}\n{text.getvalue()}", end="", flush=True)
        if args.results:
            os.makedirs(args.results, exist_ok=True)
            with open(os.path.join(args.results, name), "w", encoding="utf-8") as f:
                f.write(f"{'PASS' if passed else 'FAIL'}\n{text.getvalue()}")
    sys.exit(0 if all_passed or args.results else 1)


if __name__ == "__main__":
    main()
