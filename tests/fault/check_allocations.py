#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Memory runs out at the nth allocation of every verb, for good or once: OUT_OF_MEMORY, nothing torn, nothing left behind.

  python3 check_allocations.py --tool PATH --preload PATH --data tests/data [--every | --runs N --seed S] [--once] [--first N] [CASE | writing | reading ...]

Each n is tried if --every is given, else N of them for each case, selected by the seed. --first N: skips those before the Nth, which the
program's start makes equally for every verb. --once: memory runs out only once.  Exit 0: passed, 1: failed, 77: skipped.
"""
import argparse
import collections
import os
import random
import struct
import subprocess
import sys
import tempfile
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import sample  # noqa: E402
from injector import SKIPPED, STATIC, Ended, Fault, is_static
from invariants import States, Violation, tree
from verb_cases import chosen


class Starver:
    """Runs the tool while its memory runs out."""

    def __init__(self, preload, tool, work):
        self.preload, self.tool = preload, tool
        self.count = os.path.join(work, "count")

    def run(self, args, at=0, stays=False, seconds=30):
        with open(self.count, "wb") as file:
            file.write(bytes(16))
        environment = {**os.environ, "LD_PRELOAD": self.preload, "FSDP_FAIL_COUNT": self.count, "FSDP_FAIL_AT": str(at)}
        if stays:
            environment["FSDP_FAIL_STAYS"] = "1"
        ended = Ended(None, 0, False, 0, {}, "", "")
        try:
            done = subprocess.run([self.tool, *args], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  errors="backslashreplace", timeout=seconds)
            ended.out, ended.err = done.stdout, done.stderr
            ended.status, ended.signal = (None, -done.returncode) if done.returncode < 0 else (done.returncode, 0)
        except subprocess.TimeoutExpired:
            ended.hung = True
        with open(self.count, "rb") as file:
            ended.calls["allocations"], ended.reached = struct.unpack("QQ", file.read())
        return ended


def check_refusal(states, ended, fault):
    """As for any failure; and the message says that memory ran out, if libhdf5 reports its reasons."""
    refused = states.check_ended(ended, fault)
    libhdf5 = any(words in ended.err for words in ("error[H5_READER_FAILED]", "libhdf5 does not start", "libhdf5 refuses"))
    if refused and ended.status == 2 and "error[OUT_OF_MEMORY]" not in ended.err and not libhdf5:
        raise Violation("refused for another reason than memory")
    return refused


def sweep(case, starver, options, work, totals, failures):
    begun = time.time()
    case.prepare(starver.tool, os.path.abspath(options.data), os.path.join(work, case.name))
    clean = starver.run(case.args)
    if clean.status != case.status:
        raise Violation(f"{case.name}, undisturbed: {clean.words()}")
    states = States(case, clean.out)
    states.new, _ = tree(case.words["out"])
    case.reset()
    states.old, _ = tree(case.words["out"])
    made = clean.calls["allocations"]
    points = [(at, stays) for at in range(options.first, made + 1) for stays in ((False,) if options.once else (False, True))]
    runs = sample.count(options.runs)
    if not options.every and runs < len(points):
        points = random.Random(f"{options.seed} {case.name}").sample(points, runs)
    counts = collections.Counter()
    for at, stays in points:
        fault = Fault("malloc", at, "error=12", stays)
        case.reset()
        ended = starver.run(case.args, at, stays)
        counts["runs"] += 1
        try:
            counts["refused"] += check_refusal(states, ended, fault)
            if states.which()[1]:
                states.check_next_run(lambda: starver.run(case.args))
        except Violation as violation:
            failures.append(f"{case.name}: {fault}: {violation}\n  {ended.words()}")
            print(f"FAILED {failures[-1]}", flush=True)
    totals.update(counts)
    print(f"{case.name}: {made} allocations; {counts['runs']} runs, {counts['refused']} refused; {time.time() - begun:.0f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--tool", required=True)
    parser.add_argument("--preload", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--every", action="store_true")
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if is_static(options.tool):
        print(STATIC)
        return SKIPPED
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    totals, failures = collections.Counter(), []
    with tempfile.TemporaryDirectory(dir=memory) as work:
        starver = Starver(os.path.abspath(options.preload), os.path.abspath(options.tool), work)
        for case in chosen(options.cases):
            sweep(case, starver, options, work, totals, failures)
    print(f"in all {totals['runs']} runs, {totals['refused']} of them refused")
    if failures:
        print(f"FAILED: {len(failures)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
