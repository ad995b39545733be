#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Changes every layout as a whole folder in every way, and runs every verb.

    check_mutations.py --tool FSDP_CKPT --data tests/data --python PYTHON [--corpus FOLDER] [--frameworks FOLDER]
                       [--count N] [--seconds N] [--seed N] [--long] [--only NAME] [--case SEED]

Each case takes a checkpoint (checkpoints.py), seals it or not, changes it (mutations.py), and runs the verbs over it:

- a status is one that docs/cli.md has, an error is one line with a code of docs/errors.md; nothing hangs, 1 s and 64 MB;
- nothing except the output is touched, and a failed run leaves nothing behind;
- the output equals what PyTorch, safetensors or h5py (reader.py) read of the changed checkpoint, or read of it before;
- if they read something else, or refuse, the checkpoint is not called sound, except for the limits of docs/reliability.md;
- in a sealed one, every change of a file's name or content is found, and nothing else;
- verify, inspect, diff, stats and consolidate agree.

The verbs are chosen at random, some for each case; --long runs all. --seconds continues until then. --case repeats one case and keeps its
folder.
"""
import argparse
import collections
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, "..", "support"))

import invariants
import mutations
import runner
import sample
from checkpoints import found


class Reader:
    """reader.py, which has PyTorch loaded."""

    def __init__(self, python):
        self.process = subprocess.Popen([python, os.path.join(HERE, "reader.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the reader ended")
        return json.loads(line)

    def read(self, kind, path):
        """Returns the flat content, or None if it refuses."""
        answer = self.ask(read=kind, path=path)
        self.error = answer.get("error")
        return answer.get("flat")


class Subject:
    """A checkpoint before its change: its content, the programs that can read it, and others of its kind."""

    def __init__(self, checkpoint, work, reader):
        self.checkpoint, self.reader = checkpoint, reader
        # A single file gets a folder, so that its neighbours can be changed as well.
        self.root = os.path.join(work, "pristine", re.sub(r"\W", "_", checkpoint.name))
        self.inner = "" if os.path.isdir(checkpoint.path) else os.path.basename(checkpoint.path)
        if self.inner:
            os.makedirs(self.root)
            shutil.copy(checkpoint.path, self.root)
        else:
            shutil.copytree(checkpoint.path, self.root, copy_function=shutil.copy)
        self.work, self.layout_mates, self.prepared = work, [], False
        # h5py reads only tensors; values are attributes.
        self.part = invariants.tensors if checkpoint.kind == "hdf5" else invariants.dotted

    def prepare(self, counts, tool):
        """Computes slow parts once the checkpoint is used: its content, and another step of it, by PyTorch."""
        if self.prepared:
            return
        self.prepared = True
        self.truth = self.content()
        self.check_tool(tool)
        self.mates = self.layout_mates[:4]
        out = os.path.join(self.work, "steps", os.path.basename(self.root), "another_step")
        os.makedirs(os.path.dirname(out))
        if "error" in self.reader.ask(another_step=self.root, out=out):
            counts[f"no other step of {self.checkpoint.name}"] += 1
            shutil.rmtree(out, ignore_errors=True)
        else:
            self.mates.insert(0, out)

    def path(self, root=None):
        return os.path.join(root or self.root, self.inner) if self.inner else root or self.root

    def read(self, root=None):
        return None if self.checkpoint.kind == "whole" else self.reader.read(self.checkpoint.kind, self.path(root))

    def content(self):
        """Returns the content by its producer or PyTorch, and the tool agrees: tests/interop compares consolidate with it."""
        read = self.read()
        if self.checkpoint.truth:
            with open(self.checkpoint.truth, encoding="utf-8") as file:
                truth = json.load(file)
            if truth.get("tree"):
                told = self.reader.ask(tree=truth["tree"])["flat"]
            else:
                told = {k: {n: v for n, v in leaf.items() if n != "class"} for k, leaf in truth["items"].items()}
        else:
            told = read
        if told is None:
            raise SystemExit(f"{self.checkpoint.name}: nobody says what is in it")
        self.readable = read is not None and invariants.tensors(read) == invariants.tensors(told)
        return told


    def check_tool(self, tool):
        """Checks that everything compared later is equal before the change."""
        out = os.path.join(self.work, "before.pt")
        run = runner.Run(tool, ["consolidate", self.path(), out, "--force", "--no-sync", "-q"])
        got = self.reader.read("file", out) if run.status == 0 else None
        differ = [run.err] if got is None else invariants.differences(self.part(self.truth), self.part(got))
        if differ:
            raise SystemExit(f"{self.checkpoint.name}: consolidate does not write what is in it: {differ}")


def join_layouts(subjects):
    """Other worlds are checkpoints of the same layout."""
    by_layout = collections.defaultdict(list)
    for subject in subjects:
        by_layout[subject.checkpoint.layout].append(subject)
    for subject in subjects:
        subject.layout_mates = [other.root for other in by_layout[subject.checkpoint.layout] if other is not subject]


class Case:
    """One change of one checkpoint, and the verbs' reports and output."""

    def __init__(self, seed, subjects, args, work, counts):
        self.seed, self.args, self.counts = seed, args, counts
        self.drawn = random.Random(seed)
        layouts = sorted({s.checkpoint.layout for s in args.drawn})   # each in turn
        self.subject = self.drawn.choice([s for s in args.drawn if s.checkpoint.layout == layouts[seed % len(layouts)]])
        self.subject.prepare(counts, args.tool)
        self.content = self.subject.part
        self.folder = os.path.join(work, "case")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.root, self.outside, self.out = (os.path.join(self.folder, n) for n in ("ckpt", "outside", "out"))
        for folder in (self.folder, self.outside, self.out):
            os.makedirs(folder, exist_ok=True)
            os.chmod(folder, 0o777)
        shutil.copytree(self.subject.root, self.root, copy_function=shutil.copy)
        self.path = self.subject.path(self.root)
        self.sealed = self.drawn.random() < 0.35
        if self.sealed and runner.Run(args.tool, ["seal", self.path, "--no-sync"]).status != 0:
            raise SystemExit(f"{self.subject.checkpoint.name}: cannot be sealed")
        self.seal_name = f"{self.subject.inner}.fsdp_seal.json" if self.subject.inner else "fsdp_seal.json"
        self.before = runner.contents(self.root)
        strangers = self.drawn.sample([s.root for s in subjects if s.checkpoint.layout != self.subject.checkpoint.layout], 2)
        scene = mutations.Scene(self.root, self.subject.mates, strangers, self.outside, self.drawn)
        self.changes, self.said = mutations.mutate(scene)
        self.as_nobody = scene.as_nobody
        self.after = runner.contents(self.root)
        self.snapshot = self.everything()
        self.known = {content for root in [self.subject.root, *self.subject.mates, *strangers] for content in runner.contents(root).values()}
        self.wrong = []

    def everything(self):
        return runner.snapshot(self.root), runner.snapshot(self.outside)

    def fail(self, what, *details):
        self.wrong.append(" ".join(map(str, (what, *details))))

    def run(self, verb, *words, may=(0, 2)):
        """A run of a verb over the changed checkpoint. `may`: the allowed statuses."""
        run = runner.Run(self.args.tool, [verb, *words], self.as_nobody)
        for _ in range(2):
            if not (run.fault() or "").startswith("took"):
                break
            run = min(run, runner.Run(self.args.tool, [verb, *words], self.as_nobody), key=lambda r: r.seconds)
        label = " ".join([verb, *(w for w in words if not w.startswith("/"))])
        self.counts["runs"] += 1
        self.counts["by", "layout", self.subject.checkpoint.layout, run.status] += 1
        self.counts["by", "verb", verb, run.status] += 1
        for change in self.changes:
            self.counts["by", "change", change, run.status] += 1
        if run.fault():
            self.fail(label, run.fault(), run.err[-300:])
        elif run.status not in may:
            self.fail(label, f"status {run.status}", run.err[-300:], run.out[-300:])
        elif run.status == 2:
            lines = [line for line in run.err.splitlines() if line.startswith("fsdp-ckpt: error")]
            # A folder that only contains checkpoints is listed, each with its own error, in JSON inside the list.
            listed = verb in ("inspect", "verify")
            if listed and f"fsdp-ckpt/{verb}-run/1" in run.out:
                codes = re.findall(r'"code": ?"(\w+)"', run.out)
            else:
                codes = [found[1] if found else "none" for found in (re.match(r"fsdp-ckpt: error\[(\w+)\]: .", line) for line in lines)]
            if not codes or (len(codes) > 1 and not listed) or any(code not in self.args.codes for code in codes):
                self.fail(label, "status 2 without one line of error", run.err[-300:])
            self.counts["by", "code", codes[0] if codes else "none", 2] += 1
        if self.everything() != self.snapshot:
            self.fail(label, "the input was changed", changed(self.snapshot, self.everything()))
            self.snapshot = self.everything()
        return run

    def run_quietly(self, *words):
        """Does not check what it leaves."""
        return runner.Run(self.args.tool, words, self.as_nobody)

    def write(self, verb, name, *words, key=None):
        """A run that writes, only `key` if given; returns the path of the output, or None if there is none."""
        out = os.path.join(self.out, name)
        run = self.run(verb, self.path, *([key] if key is not None else []), out, "--no-sync", "-q", *words)
        left = sorted(os.listdir(self.out))
        if run.status == 0 and left != [name] or run.status != 0 and left:
            self.fail(verb, *words, f"status {run.status}, and there is {left}")
        return run, out if run.status == 0 and left == [name] else None

    def clear(self):
        shutil.rmtree(self.out)
        os.mkdir(self.out)
        os.chmod(self.out, 0o777)


def changed(before, after):
    return [(name, b.get(name), a.get(name)) for b, a in zip(before, after) for name in {*b, *a} if b.get(name) != a.get(name)][:3]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--corpus")
    parser.add_argument("--frameworks")
    parser.add_argument("--count", type=int, default=160)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--only")
    parser.add_argument("--case", type=int)
    args = parser.parse_args()
    with open(os.path.join(HERE, "..", "..", "docs", "errors.md"), encoding="utf-8") as file:
        args.codes = set(re.findall(r"^\| `([A-Z0-9_]+)` \|", file.read(), re.M))
    counts, wrong = collections.Counter(), 0
    reader = Reader(args.python)
    with tempfile.TemporaryDirectory(prefix="fsdp-mutation-") as work:
        os.chmod(work, 0o755)
        # In a place where another program can run it, too.
        args.tool = shutil.copy(args.tool, os.path.join(work, "fsdp-ckpt"))
        os.chmod(args.tool, 0o755)
        subjects = [Subject(checkpoint, work, reader) for checkpoint in found(args.data, args.corpus, args.frameworks)]
        join_layouts(subjects)
        args.h5py = reader.ask(about=True)["h5py"]
        args.drawn = [s for s in subjects if args.only in (None, s.checkpoint.layout, s.checkpoint.name)]
        end, seed = time.monotonic() + args.seconds, args.seed
        while seed < args.seed + sample.count(args.count) or time.monotonic() < end:
            if args.case is not None:
                seed = args.case
            case = Case(seed, subjects, args, work, counts)
            invariants.check(case)
            counts["cases"] += 1
            counts["cases sealed"] += case.sealed
            if case.wrong:
                wrong += 1
                print(f"WRONG: case {seed}: {case.subject.checkpoint.name}{', sealed' if case.sealed else ''}: {case.said}")
                print("".join(f"  {line}\n" for line in case.wrong), end="", flush=True)
            if counts["cases"] % 100 == 0:
                print(f"{counts['cases']} cases, {counts['runs']} runs, {wrong} wrong", flush=True)
            if args.case is not None:
                kept_at = tempfile.mkdtemp(prefix="fsdp-mutation-case-")
                shutil.copytree(case.root, os.path.join(kept_at, "ckpt"), symlinks=True, ignore_dangling_symlinks=True)
                print(f"{case.said}; kept in {kept_at}")
                break
            seed += 1
    print(invariants.report(counts))
    print(f"{counts['cases']} changed checkpoints of {len(subjects)}, {counts['cases sealed']} sealed, {counts['runs']} runs, {wrong} wrong")
    return 1 if wrong or not counts["runs"] or not counts["sealed: found"] and args.case is None else 0


if __name__ == "__main__":
    sys.exit(main())
