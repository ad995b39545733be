#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the steps of tests/gpu/run.sh over a bundle (see bundle.sh), the most telling first.

  python3 measure.py --bundle FOLDER --out FOLDER [--only a,d] [--timed-steps N] [--tool-gb N] [--device cuda]

Each step is a process with its children, and is killed at its limit; the limits together are at most 8 minutes.  What a step finds out is
in OUT/results.jsonl the moment it is known, one object of JSON a line; what programs said is in OUT/log.txt, and OUT/summary.md is written
anew after each step.  --device cpu does what can be done without a GPU: it tries the scripts.

The last line counts: "N passed, N failed, N skipped".  Exit: 0 nothing failed, 1 something did, 2 it could not begin.
"""
import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "support")]
import fill_table
import steps
import tool_steps
from results import Results

# Step: (what it is, seconds, body), in the order of running.
STEPS = {
    "start": ("LibTorch is found, and the programs start", 30, steps.start),
    "a": ("tests on the GPU", 25, steps.tests),
    "b": ("training, by NCCL and Gloo, beside the CPU and FSDP2", 35, steps.training),
    "c": ("checkpoints between the GPU, the CPU and PyTorch", 40, steps.checkpoints),
    "d": ("time and memory of steps, beside FSDP1 and FSDP2", 80, steps.benchmarks),
    "e": ("a step in a CUDA graph", 15, steps.graph),
    "f": ("offload, recomputation, mixed precision, hybrid", 20, steps.options),
    "g": ("compute-sanitizer", 75, steps.sanitizers),
    "h": ("a trace of one step", 40, steps.trace),
    "i": ("fsdp-ckpt in memory", 120, tool_steps.tool),
}
MOST_SECONDS = 480
MOST_LOG = 64 << 10     # bytes of what one process said
MOST_SUMMARY = 10_000   # characters
MOST_DETAIL = {"failed": 250, "skipped": 120, "passed": 100}


def parse(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--only", help="the steps to run, of " + ",".join(STEPS))
    parser.add_argument("--timed-steps", type=int, default=20)
    parser.add_argument("--tool-gb", type=float, default=4)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--limit", action="append", default=[], metavar="STEP=SECONDS", help="another limit of a step")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    args.only = args.only.split(",") if args.only else list(STEPS)
    unknown = sorted(set(args.only) - set(STEPS))
    if unknown:
        parser.error(f"--only: no step is called {', '.join(unknown)}; there are {','.join(STEPS)}")
    if not os.path.isfile(os.path.join(args.bundle, "bundle.json")):
        parser.error(f"--bundle: {args.bundle} has no bundle.json; tests/gpu/bundle.sh makes a bundle")
    if args.timed_steps < 1 or args.tool_gb <= 0:
        parser.error("--timed-steps and --tool-gb are positive")
    limits = {name: seconds for name, (_, seconds, _) in STEPS.items()}
    for word in args.limit:
        name, _, seconds = word.partition("=")
        if name not in STEPS or not re.fullmatch(r"[0-9]*\.?[0-9]+", seconds):
            parser.error(f"--limit: expected STEP=SECONDS, but got '{word}'")
        limits[name] = float(seconds)
    args.limits = limits
    return args


def run_step(name, args, words, work, results):
    """Runs the step as a process, and records how it ended if that is worth a line."""
    title, seconds = STEPS[name][0], args.limits[name]
    own = os.path.join(work, name)
    os.makedirs(own)
    before, begin = results.count(name), time.monotonic()
    with open(os.path.join(own, "said"), "w") as said:
        child = subprocess.Popen([sys.executable, os.path.abspath(__file__), *words, "--step", name, "--work", work], stdout=said,
                                 stderr=subprocess.STDOUT, start_new_session=True, env={**os.environ, "TMPDIR": own})
        cut_off = False
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            cut_off = True
        finally:
            # Also what a step that ended has left running.
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            child.wait()
    took = time.monotonic() - begin
    if cut_off:
        results.part(name, title, "failed", f"cut off after {seconds:g} s")
    elif child.returncode != 0:
        with open(os.path.join(own, "said"), errors="replace") as said:
            results.part(name, title, "failed", f"exit {child.returncode}: {said.read()[-300:]}")
    elif results.count(name) == before:
        results.part(name, title, "failed", "the step recorded nothing")
    results.add({"kind": "step", "step": name, "title": title, "seconds": round(took, 1)})
    keep_log(own, name, os.path.join(args.out, "log.txt"))


def keep_log(folder, name, path):
    """Appends the end of what each process of a step said to the log: they are files called said, or a number, which is a rank."""
    with open(path, "a", encoding="utf-8", errors="replace") as log:
        for place, _, files in sorted(os.walk(folder)):
            for file in sorted(files):
                if file != "said" and not file.isdigit():
                    continue
                with open(os.path.join(place, file), "rb") as said:
                    said.seek(max(0, os.fstat(said.fileno()).st_size - MOST_LOG))
                    text = said.read().decode(errors="replace")
                if text.strip():
                    log.write(f"==== {name}: {os.path.relpath(os.path.join(place, file), folder)}\n{text.rstrip()}\n")


def summary(results):
    """Returns the tables, and the line that counts."""
    found = fill_table.read(results.path)
    counts = {outcome: sum(part["outcome"] == outcome for part in found["parts"]) for outcome in ("passed", "failed", "skipped")}
    for part in found["parts"]:
        part["detail"] = part["detail"][:MOST_DETAIL[part["outcome"]]]
    lines = fill_table.described(found)
    last = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
    room = MOST_SUMMARY - len(last) - 200
    text = "\n".join(lines)
    if len(text) > room:
        text = text[:room].rsplit("\n", 1)[0] + f"\n\n(more in {os.path.basename(results.path)})"
    return f"{text}\n\n{last}\n", counts


def main(words):
    args = parse(words)
    results = Results(os.path.join(args.out, "results.jsonl"))
    if args.step:
        STEPS[args.step][2](steps.Context(args, results))
        return 0
    os.makedirs(args.out, exist_ok=True)
    for name in "results.jsonl", "log.txt", "summary.md":
        if os.path.exists(os.path.join(args.out, name)):
            os.remove(os.path.join(args.out, name))
    # Ends as if interrupted: steps are killed with all that they started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    work = tempfile.mkdtemp(prefix="fsdp-gpu-")
    try:
        for name, (title, _, _) in STEPS.items():
            if name not in args.only and name != "start":
                results.part(name, title, "skipped", f"left out by --only {','.join(args.only)}")
            elif name not in ("start", "i") and not os.path.exists(os.path.join(work, steps.SETUP)):
                results.part(name, title, "skipped", "LibTorch was not found, see start")
            else:
                run_step(name, args, words, work, results)
            text, counts = summary(results)
            with open(os.path.join(args.out, "summary.md"), "w") as f:
                f.write(text)
    finally:
        for folder in work, steps.in_memory(work):
            shutil.rmtree(folder, ignore_errors=True)
    print(text, end="")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
