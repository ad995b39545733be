#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""For any file of at most 1 MB, every verb ends by itself, within 1 s of processor time and 64 MB.

The second is one of a processor that has nothing else to do (slowness.py).

  check_bounds.py --tool PATH [--work FOLDER] [--part I/N] [--long] [--only NAME]... [INPUT...]
  check_bounds.py --tool PATH --corpus tests
  check_bounds.py --tool PATH --h5py PYTHON

Without INPUT: the hostile files of hostile.py, some verbs each; with --long all verbs.  INPUT: files and folders, all verbs.
--h5py: the HDF5 files of hostile_hdf5.py, made by a Python that has h5py.
--corpus: every input of the fuzz targets, and every file in the tests' data, as checkpoints (some verbs each).
"""
import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile

import hostile

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import sample  # noqa: E402
import slowness  # noqa: E402

SECONDS = 1.0
# The tests' own Python has more memory than the tool may use, and a process is charged with the memory of the process that it was forked
# from, so the tool starts from a shell.
MEGABYTES = 64
AGAIN = 2
# Takes every model: its tensors are stacked, scaled and renamed.
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../data/golden/2.11.0/minimal/ckpt")
RULES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "any.toml")


def verbs(out):
    pt, st, h5, folder = (os.path.join(out, name) for name in ("o.pt", "o.safetensors", "o.h5", "o"))
    fast = "--no-sync"
    return {
        "inspect": ["inspect", "PATH"],
        "inspect json": ["inspect", "PATH", "--json", "--chunks", "--values", "always"],
        "inspect fold": ["inspect", "PATH", "--fold", "--files"],
        "inspect html": ["inspect", "PATH", "--html", os.path.join(out, "o.html")],
        "verify html": ["verify", "PATH", "--html", os.path.join(out, "o.html")],
        "globals": ["inspect", "PATH", "--globals"],
        "verify": ["verify", "PATH"],
        "verify json": ["verify", "PATH", "--json"],
        "verify fast": ["verify", "PATH", "--fast"],
        "consolidate pt": ["consolidate", "PATH", pt, fast],
        "consolidate safetensors": ["consolidate", "PATH", st, fast, "--drop-values"],
        "consolidate h5": ["consolidate", "PATH", h5, fast],
        "convert dcp": ["convert", "PATH", folder, "--to", "dcp", fast],
        "convert lightning": ["convert", "PATH", folder, "--to", "lightning", fast],
        "convert lightning-ckpt": ["convert", "PATH", pt, "--to", "lightning-ckpt", fast],
        "convert accelerate": ["convert", "PATH", folder, "--to", "accelerate", fast],
        "convert torch-checkpointing": ["convert", "PATH", folder, "--to", "torch-checkpointing", "-w", "3", fast],
        "convert dtype": ["convert", "PATH", pt, "--dtype", "bfloat16", fast],
        "shard": ["shard", "PATH", folder, "--world-size", "3", fast],
        "reshard": ["reshard", "PATH", folder, "--world-size", "3", fast],
        "rekey": ["rekey", "PATH", folder, "--key-by", "id", fast],
        "rekey name": ["rekey", "PATH", folder, "--key-by", "name", fast],
        "rename": ["rename", "PATH", folder, "--strip-prefix", "a", fast],
        "set": ["set", "PATH", folder, "**=1", fast],
        "set taken": ["set", "PATH", folder, "--drop", "**", "--take-from", "PATH", "--take", "**", fast],
        "salvage": ["salvage", "PATH", folder, "--to", "pt", fast],
        "salvage from": ["salvage", "PATH", pt, "--from", "PATH", fast],
        "groups": ["groups", "PATH", folder, "--split", "**", "lr=1", fast],
        "groups join": ["groups", "PATH", folder, "--join", "0,1", "--options-of", "0", fast],
        "resize-vocab": ["resize-vocab", "PATH", pt, "--size", "1000", "--table", "**", fast],
        "export": ["export", "PATH", folder, "--incomplete", fast],
        "map": ["map", RULES, "PATH", folder, "--to", "dcp", "--set", "rows=3", fast],
        "average": ["average", "PATH", "PATH", pt, "--optimizer", fast],
        "extract-lora": ["extract-lora", "PATH", "PATH", os.path.join(out, "adapter"), "--rank", "1", fast],
        "diff": ["diff", "PATH", "PATH"],
        "diff other": ["diff", "PATH", MODEL],
        "diff html": ["diff", MODEL, "PATH", "--html", os.path.join(out, "d.html")],
        "stats": ["stats", "PATH"],
        "stats json": ["stats", "PATH", "--json"],
        "extract": ["extract", "PATH", "a"],
    }


SOME = ["inspect json", "inspect fold", "inspect html", "verify html", "globals", "verify", "consolidate pt", "consolidate safetensors", "consolidate h5", "convert dcp",
        "reshard", "rename", "set taken", "resize-vocab", "map", "export", "average", "extract-lora", "diff", "diff other", "stats", "extract", "salvage"]


def corpus(tests, work):
    """The inputs of fuzz targets, under names that make them checkpoints, and the data of tests."""
    inputs, here = {}, os.path.join(work, "corpus")
    endings = {"zip": ".pt", "torch_save": ".pt", "safetensors": ".safetensors", "hdf5": ".h5", "json": ".safetensors.index.json"}
    metadata = {"pickle": ".metadata", "metadata": ".metadata", "torch_checkpointing": "metadata.pkl"}
    for target in sorted(os.listdir(os.path.join(tests, "fuzz/corpus"))):
        for name in sorted(os.listdir(os.path.join(tests, "fuzz/corpus", target))):
            source, folder = os.path.join(tests, "fuzz/corpus", target, name), os.path.join(here, target, name)
            os.makedirs(folder)
            if target in metadata:
                shutil.copy(source, os.path.join(folder, metadata[target]))
                inputs[f"{target}/{name}"] = folder
            else:
                inputs[f"{target}/{name}"] = os.path.join(folder, "x" + endings.get(target, ".pt"))
                shutil.copy(source, inputs[f"{target}/{name}"])
    for folder, folders, files in os.walk(os.path.join(tests, "data")):
        for name in [n for n in files if n.endswith((".pt", ".h5", ".safetensors", ".zip"))] + [n for n in folders if n == "ckpt"]:
            inputs[os.path.relpath(os.path.join(folder, name), tests)] = os.path.join(folder, name)
    return inputs


FEW = ["inspect json", "verify", "globals", "consolidate pt", "convert dcp", "stats"]


class Run:
    def __init__(self, tool, args):
        # The limit on processor time ends commands that would not end.
        process = subprocess.Popen(["/bin/sh", "-c", 'ulimit -t 20; exec "$@"', "sh", tool, *args], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE)
        self.message = process.stderr.read(1 << 16).decode(errors="replace")
        process.stderr.close()
        _, status, usage = os.wait4(process.pid, 0)
        self.status = os.waitstatus_to_exitcode(status)
        self.seconds = usage.ru_utime + usage.ru_stime
        self.megabytes = usage.ru_maxrss / 1024

    def fault(self):
        if self.status not in (0, 1, 2):
            return f"ended with status {self.status}"
        if self.seconds > SECONDS and self.seconds > SECONDS * slowness.now():
            return f"took {self.seconds:.2f} s of processor time"
        if self.megabytes > MEGABYTES:
            return f"took {self.megabytes:.0f} MB"
        return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", required=True)
    parser.add_argument("--work")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--corpus")
    parser.add_argument("--h5py")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--only", action="append")
    parser.add_argument("inputs", nargs="*")
    args = parser.parse_args()
    work = args.work or tempfile.mkdtemp(prefix="fsdp-bounds-")
    os.makedirs(work, exist_ok=True)
    inputs = {path: path for path in args.inputs}
    if args.corpus:
        inputs = corpus(args.corpus, work)
    if args.h5py:
        subprocess.run([args.h5py, os.path.join(os.path.dirname(os.path.abspath(__file__)), "hostile_hdf5.py"), work], check=True)
        inputs = {name: os.path.join(work, name) for name in sorted(os.listdir(work)) if name.endswith(".h5")}
    part, parts = map(int, args.part.split("/"))
    if not inputs:
        # Runs in a separate process: a child is charged with the memory that its parent had when it was started.
        names = [name for i, name in enumerate(hostile.paths(work)) if i % parts == part - 1]
        names = [name for name in args.only or names if name in names]
        subprocess.run([sys.executable, hostile.__file__, work, *names], check=True)
        inputs = hostile.paths(work, names)
    chosen = None if args.long or args.inputs or args.only else FEW if args.corpus else SOME
    out = os.path.join(work, "out")
    runs, faults, worst_seconds, worst_megabytes = 0, [], (0, ""), (0, "")
    for name in sample.taken(inputs):
        path = inputs[name]
        for verb, words in verbs(out).items():
            if chosen is not None and verb not in chosen:
                continue
            shutil.rmtree(out, ignore_errors=True)
            os.makedirs(out)
            run = Run(args.tool, [path if word == "PATH" else word for word in words])
            runs += 1
            for _ in range(AGAIN):
                if not run.fault() or run.status not in (0, 1, 2):
                    break
                shutil.rmtree(out, ignore_errors=True)
                os.makedirs(out)
                run = min(run, Run(args.tool, [path if word == "PATH" else word for word in words]), key=lambda r: r.seconds)
            worst_seconds = max(worst_seconds, (run.seconds, f"{verb} {name}"))
            worst_megabytes = max(worst_megabytes, (run.megabytes, f"{verb} {name}"))
            fault = run.fault()
            if fault:
                faults.append(f"{verb} {name}: {fault}")
                print(faults[-1], "|", run.message.strip()[:150], flush=True)
            elif args.verbose:
                print(f"{verb} {name}: {run.status} {run.seconds:.2f} s {run.megabytes:.0f} MB {run.message.strip()[:300]}", flush=True)
    if not args.work:
        shutil.rmtree(work)
    print(f"{runs} runs over {len(inputs)} inputs, {len(faults)} out of bounds; at most {worst_seconds[0]:.2f} s ({worst_seconds[1]}), "
          f"{worst_megabytes[0]:.0f} MB ({worst_megabytes[1]})")
    return 1 if faults else 0


sys.exit(main())
