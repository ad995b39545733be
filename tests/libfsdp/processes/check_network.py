#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks on two machines, which are network namespaces here, and a cable between them that is pulled: each side names a rank
of the other when the group's timeout ends, and no process is left.

  check_network.py RANK_PROGRAM

Exit: 0 as expected, 1 not, 77 if namespaces cannot be made here (says why).
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

TIMEOUT_MS = 8000
LIMIT_S = 120  # far above the timeout; only a rank that hangs takes it


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


class Machines:
    """Two namespaces with one cable."""

    def __init__(self):
        tag = f"fsdp{os.getpid()}"
        self.names = [f"{tag}a", f"{tag}b"]
        self.cable = [f"{tag[-9:]}va", f"{tag[-9:]}vb"]
        self.addresses = ["10.231.17.1", "10.231.17.2"]

    def __enter__(self):
        for name in self.names:
            made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
            if made.returncode:
                self.__exit__()
                skip(f"ip netns add: {made.stderr.strip()}")
        self.ip("link", "add", self.cable[0], "type", "veth", "peer", "name", self.cable[1])
        for name, end, address in zip(self.names, self.cable, self.addresses):
            self.ip("link", "set", end, "netns", name)
            self.ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            self.ip("-n", name, "link", "set", end, "up")
            self.ip("-n", name, "link", "set", "lo", "up")
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    @staticmethod
    def ip(*words):
        done = subprocess.run(["ip", *words], capture_output=True, text=True)
        if done.returncode:
            skip(f"ip {' '.join(words)}: {done.stderr.strip()}")

    def pull(self):
        self.ip("-n", self.names[1], "link", "set", self.cable[1], "down")


def start(machines, program, rank, world, machine, log):
    variables = {
        "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": machines.addresses[0], "MASTER_PORT": "29500", "OMP_NUM_THREADS": "1",
    }
    environment = {k: v for k, v in os.environ.items() if k != "GLOO_SOCKET_IFNAME"} | variables
    command = ["ip", "netns", "exec", machines.names[machine], program, "train on", "0", str(TIMEOUT_MS)]
    return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)


def wait_until(what, condition):
    end = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {LIMIT_S} s: {what}")
        time.sleep(0.1)


def main():
    program = sys.argv[1]
    if not shutil.which("ip"):
        skip("no ip; install iproute2")
    where = [0, 1, 0]  # the machine of each rank
    failures = []
    with Machines() as machines, tempfile.TemporaryDirectory() as folder:
        logs = [os.path.join(folder, f"rank{r}") for r in range(3)]
        files = [open(log, "wb") for log in logs]
        ranks = [start(machines, program, r, 3, where[r], files[r]) for r in range(3)]
        text = lambda r: open(logs[r], errors="replace").read()
        try:
            wait_until("all ranks train", lambda: all("waiting" in text(r) for r in range(3)))
            machines.pull()
            wait_until("all ranks have ended", lambda: all(rank.poll() is not None for rank in ranks))
        except AssertionError as error:
            failures.append(str(error))
        finally:
            for rank in ranks:
                if rank.poll() is None:
                    rank.kill()
                rank.wait()
        expected = ["rank 1 has given no sign of life for", "rank 0", "rank 1 has given no sign of life for"]
        for r in range(3):
            last = re.findall("^error: .*", text(r), re.M)
            if ranks[r].returncode != 1 or not last or expected[r] not in last[-1]:
                failures.append(f"rank {r}: status {ranks[r].returncode}, expected an error with {expected[r]!r}:\n{text(r)}")
            else:
                print(f"rank {r}: {last[-1]}")
    print("\n".join(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
