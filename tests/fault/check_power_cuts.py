#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The power fails while an output is replaced: afterwards the file system has the old output or the new one, whole.

  python3 check_power_cuts.py --tool PATH --injector PATH --data tests/data [--every | --runs N --seed S] [--kind ext4|xfs] [CASE...]

Runs on an ext4 and an XFS, in a file each.  At one system call of the run EXT4_IOC_SHUTDOWN ends the file system, the process is
killed, and the file system is mounted again, which replays its journal:
  with NOLOGFLUSH, data that was not synced is lost, as in a power cut; with LOGFLUSH, the journal reaches the disk first.
After status 0 it must be the new output. --no-sync is tested too, to show that such a cut does lose unsynced data.

Needs root, a loop device and mkfs.  Exit 0: passed, 1: failed, 77: cannot be tried here.
"""
import argparse
import collections
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

from injector import Fault, Injector, Skipped
from invariants import States, Violation, expect, tree
from verb_cases import CASES

# noauto_da_alloc: otherwise ext4 itself syncs a file that is renamed over another one.
KINDS = {"ext4": (["mkfs.ext4", "-q"], 96 << 20, "loop,noauto_da_alloc"), "xfs": (["mkfs.xfs", "-q", "-m", "reflink=1"], 320 << 20, "loop")}
FLAGS = {"NOLOGFLUSH": 2, "LOGFLUSH": 1}
TRIED = ["consolidate", "consolidate_sealed", "consolidate_new", "consolidate_folder", "reshard", "convert_hdf5", "rename_links", "rename_copy",
         "seal", "seal_file", "extract"]
# A cut at one of these equals a cut at the next one of the others: nothing on the disk has changed.
CHANGE_NOTHING = {"pread64", "read", "fadvise64", "newfstatat", "statx", "fstat", "mmap", "munmap", "mprotect", "brk", "futex_wait", "futex_other",
                  "rt_sigaction", "rt_sigprocmask", "prlimit64", "readlink", "getcwd", "clone3", "clone", "getdents64", "openat2", "set_robust_list",
                  "rseq", "getrandom", "poll", "wait4", "prctl", "madvise", "statfs", "fcntl", "lseek"}


class Disk:
    """A file system in a file, mounted."""

    def __init__(self, kind, work):
        self.kind, (mkfs, size, self.options) = kind, KINDS[kind]
        self.image, self.place = os.path.join(work, kind + ".image"), os.path.join(work, kind)
        if shutil.which(mkfs[0]) is None:
            raise Skipped(f"{mkfs[0]} is not installed")
        os.mkdir(self.place)
        with open(self.image, "wb") as file:
            file.truncate(size)
        subprocess.run([*mkfs, self.image], check=True, capture_output=True)
        self.mount()

    def mount(self):
        done = subprocess.run(["mount", "-t", self.kind, "-o", self.options, self.image, self.place], capture_output=True, text=True)
        if done.returncode != 0:
            raise Skipped(f"{self.kind}: {done.stderr.strip()}")

    def unmount(self):
        subprocess.run(["umount", self.place], check=True, capture_output=True)

    def power_returns(self):
        self.unmount()
        self.mount()


class Cuts:
    def __init__(self, disk, injector, options):
        self.disk, self.injector, self.options = disk, injector, options
        self.counts, self.failures = collections.Counter(), []

    def run(self, case):
        begun, before = time.time(), collections.Counter(self.counts)
        case.prepare(self.injector.tool, os.path.abspath(self.options.data), os.path.join(self.disk.place, case.name))
        clean = self.injector.run(case.args)
        expect(clean.status == 0, f"undisturbed: {clean.words()}")
        states = States(case, clean.out)
        states.new, _ = tree(case.words["out"])
        case.reset()
        states.old, _ = tree(case.words["out"])
        self.inputs = tree(case.words["in"])
        self.end = clean.calls["exit_group"]   # of the program; its child processes have ended before
        points = [(call, at, flag) for call, count in sorted(clean.calls.items()) if call not in CHANGE_NOTHING for at in range(1, count + 1)
                  for flag in FLAGS]
        if not self.options.every:
            ends = [point for point in points if point[:2] == ("exit_group", self.end)]
            points = random.Random(f"{self.options.seed} {case.name}").sample(points, min(self.options.runs, len(points))) + ends
        for call, at, flag in points:
            self.cut(case, states, Fault(call, at, f"cut={FLAGS[flag]}:{self.disk.place}"), flag)
        self.check_that_it_loses(case, states)
        now = self.counts - before
        print(f"{self.disk.kind}, {case.name}: {now['cuts']} cuts, {now['new']} left the new output, {now['unsealed']} one without its seal, the others "
              f"the old; {time.time() - begun:.0f} s", flush=True)

    def cut(self, case, states, fault, flag):
        case.reset()
        os.sync()
        ended = self.injector.run(case.args, fault)
        self.disk.power_returns()
        where = f"{self.disk.kind}, {case.name}: {flag} at {fault.call} #{fault.at}"
        try:
            if ended.reached == 0:  # fewer calls than in the run that was counted
                self.counts["not reached"] += 1
            expect(ended.signal == 9 or ended.reached == 0, "not cut")
            which, _ = states.which()
            expect(which != "torn", f"torn: {states.differences()}")
            expect((fault.call, fault.at) != ("exit_group", self.end) or which == "new", f"after the run had done its work: {which}")
            expect(tree(case.words["in"]) == self.inputs, "the input was changed")
            self.counts["cuts"] += 1
            self.counts[which] += 1
            states.check_next_run(lambda: self.injector.run(case.args))
        except Violation as violation:
            self.failures.append(f"{where}: {violation}\n  {ended.words()}")
            print(f"FAILED {self.failures[-1]}", flush=True)

    def check_that_it_loses(self, case, states):
        """Without fsync the same cut must leave something else than the new output: otherwise this test proves nothing."""
        case.reset()
        os.sync()
        self.injector.run([*case.args, "--no-sync"], Fault("exit_group", self.end, f"cut={FLAGS['NOLOGFLUSH']}:{self.disk.place}"))
        self.disk.power_returns()
        if states.which()[0] == "new":
            self.failures.append(f"{self.disk.kind}, {case.name}: a cut loses nothing, even of what was not synced")
            print(f"FAILED {self.failures[-1]}", flush=True)


def try_kind(kind, options, work):
    """Counts and failures."""
    disk = Disk(kind, work)
    try:
        cuts = Cuts(disk, Injector(os.path.abspath(options.injector), os.path.abspath(options.tool), work), options)
        for case in CASES:
            if case.name in (options.cases or TRIED):
                cuts.run(case)
        return cuts.counts, cuts.failures
    finally:
        disk.unmount()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--tool", required=True)
    parser.add_argument("--injector", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--kind", choices=list(KINDS))
    parser.add_argument("--every", action="store_true")
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    totals, failures, tried = collections.Counter(), [], []
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    for kind in [options.kind] if options.kind else list(KINDS):
        with tempfile.TemporaryDirectory(dir=memory) as work:
            try:
                counts, failed = try_kind(kind, options, work)
            except Skipped as reason:
                print(f"SKIP {kind}: {reason}")
                continue
        totals.update(counts)
        failures += failed
        tried.append(kind)
    print(f"in all {totals['cuts']} cuts on {' and '.join(tried) or 'no file system'}: {totals['new']} new, {totals['old']} old, {totals['unsealed']} without "
          f"a seal, {len(failures)} failures")
    if not tried:
        return 77
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
