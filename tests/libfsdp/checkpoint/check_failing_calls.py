#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A system call of one rank fails during a save over a checkpoint (a full disk, say): all ranks report which and why, and the old
one is as it was.

  python check_failing_calls.py --program save_ranks     exit 0: passed, 1: failed, 77: no strace here
"""
import argparse
import os
import shutil
import sys
import tempfile

sys.path.append(os.path.dirname(os.path.abspath(__file__)))
from check_kills import NEW, OLD, Bench, can_trace

# rank, the call whose first use fails, the error, its expected message
FAILURES = [
    (1, "fallocate", "ENOSPC", "No space left on device"),
    (0, "fallocate", "ENOSPC", "No space left on device"),
    (1, "pwrite64", "ENOSPC", "No space left on device"),
    (1, "pwrite64", "EIO", "Input/output error"),
    (1, "fsync", "EIO", "Input/output error"),
    (0, "fsync", "EIO", "Input/output error"),
    (0, "renameat2", "EIO", "Input/output error"),
]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    program = os.path.abspath(parser.parse_args().program)
    if not can_trace():
        return 77
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(program, folder)
        bench.save(OLD)
        shutil.move(bench.out, bench.old)
        for rank, call, error, words in FAILURES:
            bench.reset()
            outcomes = bench.finish(bench.start(NEW, {rank: ["-e", f"trace={call}", "-e", f"inject={call}:error={error}:when=1"]}))
            what = f"{call} of rank {rank} fails with {error}"
            for said, status in outcomes:
                if status != 1 or f"failed on rank {rank}: " not in said or words not in said:
                    sys.exit(f"{what}: a rank ended with {status} and said {said!r}")
            left = sorted(name for name in os.listdir(folder) if not name.startswith("trace"))
            if bench.loaded() != OLD or left != ["old", "out"]:
                sys.exit(f"{what}: {bench.loaded()} is there, and {left}")
            bench.save(NEW)
            if bench.loaded() != NEW:
                sys.exit(f"{what}: the next save did not work")
    print(f"{len(FAILURES)} failing calls: every rank said which, and the old checkpoint stayed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
