# SPDX-License-Identifier: Apache-2.0
"""Runs the tool with one system call failing (failing_call.cpp), and reports how it ended."""
import errno
import os
import struct
import subprocess
from dataclasses import dataclass

SKIPPED = 77


class Skipped(Exception):
    """Nothing can be tried on this machine; holds the reason."""


def is_static(program):
    """Returns whether no loader starts the program (its ELF file asks for none), so that LD_PRELOAD does not reach it."""
    with open(program, "rb") as file:
        head = file.read(64)
        if head[:6] != b"\x7fELF\2\1":
            return False   # not 64 bits, little-endian: a script, say
        (table,), (size, count) = struct.unpack_from("<Q", head, 32), struct.unpack_from("<HH", head, 54)
        file.seek(table)
        entries = file.read(size * count)
    interpreter = 3
    return all(struct.unpack_from("<I", entries, size * i)[0] != interpreter for i in range(count))


STATIC = "skipped: the program is static, and LD_PRELOAD does not reach it; the same sources are tried where they are linked dynamically"


@dataclass(frozen=True)
class Fault:
    """The fault at occurrence `at` of a call, and at all later ones if it `stays`."""
    call: str
    at: int
    what: str
    stays: bool = False

    def __str__(self):
        kind, _, value = self.what.partition("=")
        if kind in ("error", "done"):
            value = errno.errorcode[int(value)]
        return f"{self.call} #{self.at}: {kind}{' ' if value else ''}{value}{', and all later ones' if self.stays else ''}"


@dataclass
class Ended:
    """The end of a run. `status` is None if a signal ended it or it `hung`."""
    status: int
    signal: int
    hung: bool
    reached: int   # the number of injected faults: 0 if the run made fewer such calls
    calls: dict    # by name, how many calls were counted
    out: str
    err: str

    def words(self):
        how = "no end" if self.hung else f"signal {self.signal}" if self.signal else f"status {self.status}"
        return f"{how}\n  stdout: {self.out[-600:]!r}\n  stderr: {self.err[-600:]!r}"


class Injector:
    """Requires: `work`, a separate folder for reports. `begins`: the call after which counting begins; None: the start of the tool."""

    def __init__(self, program, tool, work, seconds=30, begins=None):
        self.program, self.tool, self.seconds, self.begins = program, tool, seconds, begins
        self.report = os.path.join(work, "report")

    def run(self, args, fault=None, **kw):
        command = [self.program, "--report", self.report, "--seconds", str(self.seconds)] + (["--from", self.begins] if self.begins else [])
        if fault:
            command += ["--call", fault.call, "--at", str(fault.at), "--do", fault.what] + (["--stays"] if fault.stays else [])
        done = subprocess.run([*command, "--", self.tool, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              errors="backslashreplace", **kw)
        if done.returncode == SKIPPED:
            raise Skipped(done.stderr.strip())
        if done.returncode != 0:
            raise RuntimeError(f"{command}: {done.returncode}: {done.stderr}")
        ended = Ended(None, 0, False, 0, {}, done.stdout, done.stderr)
        with open(self.report) as file:
            for line in file:
                kind, *words = line.split()
                if kind == "calls":
                    ended.calls[words[0]] = int(words[1])
                elif kind == "reached":
                    ended.reached = int(words[0])
                elif kind == "exit":
                    ended.status = int(words[0])
                elif kind == "signal":
                    ended.signal = int(words[0])
                elif kind == "hung":
                    ended.hung = True
        return ended
