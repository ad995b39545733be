#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every rank of a training is killed, or stopped, at a random moment of training, saving and loading: how long the others take to name it.

  check_deaths.py RANK_PROGRAM [--runs N] [--seed S] [--table]

A death is named within LIMIT_S; a rank that is stopped, at the group's timeout, because it may go on.  --table prints medians and worst times.
Exit: 0 as expected, 1 not.
"""
import argparse
import os
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "support"))
import slowness  # noqa: E402

RANKS = 3
LIMIT_S = 5          # of an idle machine
TIMEOUT_MS = 600_000
STOPPED_MS = 4000    # the group's timeout where a rank is stopped


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(program, victim, timeout_ms, direct, folder):
    port = free_port()
    ranks = []
    for rank in range(RANKS):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(RANKS),
                       "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "FSDP_TEST_FOLDER": folder, "OMP_NUM_THREADS": "1"}
        if not direct:
            environment["FSDP_TEST_SOCKETS"] = "1"
        log = open(os.path.join(folder, f"rank{rank}.log"), "w+b")
        ranks.append((subprocess.Popen([program, "train", str(victim), str(timeout_ms)], env=environment, stdout=log, stderr=log,
                                       cwd=folder), log))
    return ranks


def said(log):
    log.seek(0)
    return log.read().decode(errors="replace")


def hit(program, victim, kind, direct, delay):
    """Returns the seconds until all others have ended, and what is wrong."""
    folder = tempfile.mkdtemp(prefix="fsdp-deaths-")
    ranks = start(program, victim, STOPPED_MS if kind == "stop" else TIMEOUT_MS, direct, folder)
    try:
        deadline = time.monotonic() + 120
        while not all("round 0" in said(log) for _, log in ranks):
            if time.monotonic() > deadline or any(process.poll() is not None for process, _ in ranks):
                return None, "did not start: " + " | ".join(said(log)[-300:] for _, log in ranks)
            time.sleep(0.02)
        time.sleep(delay)
        began = time.monotonic()
        ranks[victim][0].send_signal(signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
        others = [(process, log) for rank, (process, log) in enumerate(ranks) if rank != victim]
        for process, log in others:
            try:
                process.wait(timeout=90)
            except subprocess.TimeoutExpired:
                return None, "hangs: " + said(log)[-300:]
        took = time.monotonic() - began
        for process, log in others:
            text = said(log)
            error = text[text.rfind("error: "):]
            if process.returncode != 1 or not re.search(rf"\brank {victim}\b", error):
                return took, f"rank {victim} is not named (exit {process.returncode}): {text[-400:]}"
            if "frame #" in error:   # LibTorch's own warnings may have some
                return took, "a stack trace in the message"
        return took, None
    finally:
        for process, log in ranks:
            process.kill()
            process.wait()
            log.close()
        shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--runs", type=int, default=16, help="of each way")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    program = os.path.abspath(arguments.program)
    chance = random.Random(arguments.seed)
    failures = []
    for direct in (True, False):
        for kind in ("kill", "stop"):
            for victim in range(RANKS):
                times = []
                for _ in range(arguments.runs if kind == "kill" else max(1, arguments.runs // 4)):
                    took, wrong = hit(program, victim, kind, direct, chance.uniform(0, 0.5))
                    way = f"{kind} of rank {victim}, {'direct' if direct else 'sockets'}"
                    if wrong:
                        failures.append(f"{way}: {wrong}")
                        continue
                    times.append(took)
                    limit = LIMIT_S if kind == "kill" else STOPPED_MS / 1000 + 10
                    if took > limit and took > limit * slowness.now():
                        failures.append(f"{way}: named after {took:.1f} s, at most {limit} s")
                if arguments.table and times:
                    print(f"| {way} | {len(times)} | {statistics.median(times):.1f} | {max(times):.1f} |", flush=True)
    for failure in failures:
        print("FAILED", failure)
    print("FAILED:" if failures else "passed", len(failures) or "")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
