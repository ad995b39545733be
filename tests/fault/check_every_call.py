#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes system calls of every verb fail, and kills the process there; in every case the rules in invariants.py hold.

  python3 check_every_call.py --tool PATH --injector PATH --data tests/data [--runs N | --every | --every-way] [--seed S]
    [--work FOLDER] [CASE | writing | reading ...]

--runs N: N faults for each case, selected by the seed; each call and each way it can fail is used once before any is repeated.
--every: each occurrence of each call fails, in the ways of call_errors.py in turn (the seed selects the first), and is a place to kill.
--every-way: each occurrence, in each way.
--work: checkpoints lie below FOLDER; else in memory, where fsync costs nothing: another test covers what a power cut leaves.
Exit 0: passed, 1: failed, 77: tracing is not possible here.
"""
import argparse
import collections
import os
import random
import sys
import tempfile
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import sample  # noqa: E402
from call_errors import faults_of
from injector import Fault, Injector, Skipped, is_static
from invariants import States, Violation, tree
from verb_cases import chosen


def all_faults(case, calls):
    for call, count in sorted(calls.items()):
        for at in range(1, count + 1):
            if case.writes() and call != "futex_other":
                yield Fault(call, at, "kill")
            for what, stays in faults_of(call):
                yield Fault(call, at, what, stays)


def by_turns(faults, seed):
    """Each kill, and one failure of each occurrence."""
    ways = collections.defaultdict(list)
    for fault in faults:
        if fault.what == "kill":
            yield fault
        else:
            ways[fault.call, fault.at].append(fault)
    for (_, at), failures in ways.items():
        yield failures[(at + seed) % len(failures)]


def picked(faults, count, random_numbers):
    """`count` of them, spread over (call, what) as evenly as possible."""
    groups = collections.defaultdict(list)
    for fault in faults:
        groups[fault.call, fault.what, fault.stays].append(fault)
    for group in groups.values():
        random_numbers.shuffle(group)
    keys = list(groups)
    random_numbers.shuffle(keys)
    chosen = []
    while len(chosen) < count and any(groups.values()):
        for key in keys:
            if groups[key] and len(chosen) < count:
                chosen.append(groups[key].pop())
    return chosen


class Sweep:
    def __init__(self, options, work, begins):
        self.options, self.work = options, work
        self.injector = Injector(os.path.abspath(options.injector), os.path.abspath(options.tool), work, begins=begins)
        self.counts = collections.Counter()
        self.failures = []

    def run(self, case):
        begun, before = time.time(), collections.Counter(self.counts)
        case.prepare(self.injector.tool, self.options.data, os.path.join(self.work, case.name))
        clean = self.injector.run(case.args)
        if clean.status != case.status:
            raise Violation(f"undisturbed: {clean.words()}")
        if not clean.calls:
            raise Violation(f"no call was counted: {self.injector.begins} was never made")
        states = States(case, clean.out)
        states.new, left = tree(case.words["out"])
        case.reset()
        states.old, _ = tree(case.words["out"])
        inputs = tree(case.words["in"])
        if left or (case.writes() and states.old == states.new):
            raise Violation(f"undisturbed: {left} left, or nothing was written")
        again = self.injector.run(case.args)
        if states.which() != ("new", []) or again.out != clean.out:
            raise Violation(f"two undisturbed runs differ: {states.differences()}\n{clean.out!r}\n{again.out!r}")
        faults = list(all_faults(case, clean.calls))
        if self.options.every:
            faults = list(by_turns(faults, self.options.seed))
        elif not self.options.every_way:
            faults = picked(faults, sample.count(self.options.runs), random.Random(f"{self.options.seed} {case.name}"))
        for fault in faults:
            self.strike(case, states, fault)
        if tree(case.words["in"]) != inputs:
            self.failures.append(f"{case.name}: the input was changed")
        now = self.counts - before
        print(f"{case.name}: {sum(clean.calls.values())} calls of {len(clean.calls)} kinds; {now['kills']} kills ({now['kills after']} after the new "
              f"output was in place), {now['failures']} failing calls ({now['refused']} refused), {now['not reached']} not reached; "
              f"{time.time() - begun:.0f} s", flush=True)

    def strike(self, case, states, fault):
        case.reset()
        ended = self.injector.run(case.args, fault)
        try:
            if ended.reached == 0:
                self.counts["not reached"] += 1
            if fault.what == "kill" and ended.signal == 9:
                self.counts["kills"] += 1
                self.counts["kills after"] += states.check_killed()
                again = True
            else:
                self.counts["failures"] += 1
                self.counts["refused"] += states.check_ended(ended, fault)
                again = states.which()[1] != []
            if again:
                states.check_next_run(lambda: self.injector.run(case.args))
        except Violation as violation:
            self.failures.append(f"{case.name}: {fault}: {violation}\n  {ended.words()}")
            print(f"FAILED {self.failures[-1]}", flush=True)


def parser(description):
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("cases", nargs="*")
    result.add_argument("--tool", required=True)
    result.add_argument("--injector", required=True)
    result.add_argument("--data")
    result.add_argument("--every", action="store_true")
    result.add_argument("--every-way", action="store_true")
    result.add_argument("--runs", type=int, default=300)
    result.add_argument("--seed", type=int, default=1)
    result.add_argument("--work", default="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    return result


def sweep(options, cases, begins=None):
    """The exit status.  `begins`: see Injector."""
    with tempfile.TemporaryDirectory(dir=options.work) as work:
        runs = Sweep(options, work, begins)
        try:
            for case in cases:
                runs.run(case)
        except Skipped as reason:
            print(f"skipped: {reason}")
            return 77
    print(f"in all {runs.counts['kills']} kills, {runs.counts['failures']} failing calls, {runs.counts['refused']} of them refused")
    if runs.failures:
        print(f"FAILED: {len(runs.failures)}")
        return 1
    return 0


# In a static program the C library starts inside the program, and ends it with words of its own if it cannot, as the loader of others does.
# The first call of ours asks whether the standard streams are open.
FIRST_OF_STATIC = "fcntl"

if __name__ == "__main__":
    options = parser(__doc__).parse_args()
    sys.exit(sweep(options, chosen(options.cases), FIRST_OF_STATIC if is_static(options.tool) else None))
