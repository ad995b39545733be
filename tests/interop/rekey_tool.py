# SPDX-License-Identifier: Apache-2.0
"""Runs the tool for the checks of rekey and rename, and compares what it writes."""
import argparse
import glob
import hashlib
import json
import os
import subprocess
import tempfile
import traceback

import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

TOOL = None  # set by check_rekey.py


class Failure(Exception):
    pass


def check(condition, message):
    if not condition:
        raise Failure(message)


def run_checks(tool, checks, chosen):
    """Runs the chosen checks, or all, each in a folder of its own; returns the number of those that failed."""
    global TOOL
    TOOL, failed = tool, 0
    for name in chosen or checks:
        with tempfile.TemporaryDirectory() as tmp:
            try:
                checks[name](tmp)
                print(f"ok {name}", flush=True)
            except Exception:
                failed += 1
                print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
    return failed


def main(description, checks):
    """The whole of a script with the option --tool and the names of checks; `checks` makes them once the tool is known."""
    global TOOL
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="*")
    parser.add_argument("--tool", required=True)
    args = parser.parse_args()
    TOOL = args.tool
    every = checks()
    unknown = set(args.checks) - every.keys()
    if unknown:
        parser.error(f"no such checks: {sorted(unknown)}")
    return 1 if run_checks(args.tool, every, args.checks) else 0


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


def model_types(name):
    """Those that a built-in map names; none, if it is for any model."""
    text = json.loads(run("maps", "--show", name, "--json"))["rules"]
    said = next((line for line in text.splitlines() if line.startswith("model_type")), "= []")
    types = json.loads(said.partition("=")[2].strip())
    return [types] if isinstance(types, str) else types


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


def digest(folder):
    return {f: hashlib.sha256(open(f, "rb").read()).hexdigest() for f in sorted(glob.glob(folder + "/**", recursive=True, include_hidden=True))
            if os.path.isfile(f)}


def inodes(folder):
    return {os.path.basename(f): (os.stat(f).st_dev, os.stat(f).st_ino) for f in glob.glob(folder + "/*") if os.path.isfile(f)}
