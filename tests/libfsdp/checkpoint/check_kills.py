#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills ranks while they save over a checkpoint: in every case PyTorch loads the old one or the new one.

  python check_kills.py --program save_ranks [--kills 40]     exit 0: passed, 1: failed, 77: no strace here

One rank gets SIGKILL at one of its system calls.  Then the others are killed too, as a launcher does it, or, every eighth time, left to
find out by themselves; after that the next save must work.
"""
import argparse
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import warnings

warnings.simplefilter("ignore")
import torch
import torch.distributed.checkpoint as dcp

WORLD = 2
# Calls that writing makes, but starting does not.
CALLS = ["mkdirat", "flock", "fallocate", "pwrite64", "fsync", "renameat2", "unlinkat"]
OLD, NEW = 1000.0, 2000.0


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def can_trace():
    probe = shutil.which("strace") and subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True)
    if not probe or probe.returncode != 0:
        print("skipped: strace is not installed or may not trace here")
        return False
    return True


class Bench:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        self.out, self.old = os.path.join(folder, "out"), os.path.join(folder, "old")

    def start(self, first, strace={}):
        port = free_port()
        ranks = []
        for rank in range(WORLD):
            env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(WORLD), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(WORLD),
                       MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
            traced = ["strace", "-f", "-o", f"{self.folder}/trace{rank}", *strace[rank]] if rank in strace else []
            ranks.append(subprocess.Popen([*traced, self.program, self.out, str(first)], env=env, stdout=subprocess.PIPE,
                                          stderr=subprocess.DEVNULL, text=True))
        return ranks

    def finish(self, ranks):
        return [(rank.communicate(timeout=120)[0], rank.returncode) for rank in ranks]

    def save(self, first, strace={}):
        for said, status in self.finish(self.start(first, strace)):
            if status != 0:
                sys.exit(f"a save without a kill: status {status}: {said}")

    def reset(self):
        for name in os.listdir(self.folder):
            if name.startswith("trace"):
                continue
            if name != "old":
                shutil.rmtree(os.path.join(self.folder, name))
        shutil.copytree(self.old, self.out)

    def loaded(self):
        """Returns `first` of the checkpoint that PyTorch loads, if all of it belongs together."""
        state = {"rows": torch.zeros(600, 1000, dtype=torch.float64), "first": 0.0, "whole": torch.zeros(9)}
        dcp.load(state, checkpoint_id=self.out)
        first = state["first"]
        whole = torch.equal(state["rows"], torch.arange(600_000, dtype=torch.float64).view(600, 1000) + first)
        if first not in (OLD, NEW) or not whole or not torch.equal(state["whole"], torch.ones(9)):
            sys.exit(f"a mix: first {first}, rows {'whole' if whole else 'torn'}")
        return first

    def points(self):
        """(rank, call, count) of every call that a save makes."""
        self.reset()
        self.save(NEW, {rank: ["-e", "trace=" + ",".join(CALLS)] for rank in range(WORLD)})
        found = []
        for rank in range(WORLD):
            with open(f"{self.folder}/trace{rank}") as trace:
                lines = trace.readlines()
            for call in CALLS:
                count = sum(f" {call}(" in line for line in lines)
                found += [(rank, call, at) for at in range(1, count + 1)]
        return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--kills", type=int, default=int(os.environ.get("FSDP_TEST_KILLS", "40")))
    args = parser.parse_args()
    if not can_trace():
        return 77
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(os.path.abspath(args.program), folder)
        bench.save(OLD)
        shutil.move(bench.out, bench.old)
        points = bench.points()
        assert bench.loaded() == NEW
        random.seed(1)
        random.shuffle(points)
        # Every point once before any is repeated; rare calls come first.
        points.sort(key=lambda point: (point[2] - 1) // 2)
        replaced = 0
        for number in range(args.kills):
            rank, call, at = points[number % len(points)]
            bench.reset()
            ranks = bench.start(NEW, {rank: ["-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={at}"]})
            ranks[rank].wait(timeout=120)
            alone = number % 8 == 7
            if not alone:
                for other in ranks:
                    other.kill()
            outcomes = bench.finish(ranks)
            where = f"rank {rank} killed at {call} #{at}"
            if alone and any(status == 0 for _, status in outcomes) and bench.loaded() != NEW:
                sys.exit(f"{where}: a rank says it saved: {outcomes}")
            now = bench.loaded()
            replaced += now == NEW
            if alone:
                bench.save(NEW)
                left = [name for name in os.listdir(folder) if not name.startswith("trace")]
                if bench.loaded() != NEW or sorted(left) != ["old", "out"]:
                    sys.exit(f"{where}: the next save left {left}")
    if not 0 < replaced < args.kills:
        sys.exit(f"{replaced} of {args.kills} kills came after the new one was in place: they do not cross the rename")
    print(f"{args.kills} kills at {min(args.kills, len(points))} points: {replaced} left the new checkpoint, the others the old one")
    return 0


if __name__ == "__main__":
    sys.exit(main())
