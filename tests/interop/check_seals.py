#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Seals, on checkpoints of every producer: no false alarm, PyTorch still loads them, every damage is found.

    check_seals.py CASE... --tool FSDP_CKPT [--commands PROGRAM] [--seed N]

A case is a folder with ckpt (a folder or a file) or full.pt in it.  Each is copied, in two ways; verify of the copy, without a seal,
reports the same as for the original, and no data newer than its metadata.  It is sealed and matches.  Then it is damaged, one way at a
time, and restored again:
- every file is removed; cut and lengthened by a byte; a file is added;
- bytes of every file are changed, including `.metadata` and the seal (every byte if the case is small);
- every two items of one size are swapped, within a file and between files (up to 60 for each case, at random).
Two saves by PyTorch into one folder are mixed in every way, with and without a seal.

PROGRAM is run_commands.cpp, which has the tool's verbs in one process: the sixty thousand runs of verify are its, and one in a hundred,
drawn at random, the tool's too, with the same answer.
"""
import argparse
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import sample  # noqa: E402
import truth  # noqa: E402

SEAL = "fsdp_seal.json"
MAX_SWAPS = 60
# Files of at most this size are changed at every byte, others at this many places.
EVERY_BYTE = 1200
PLACES = 24
failures = []
counts = dict.fromkeys(["sound", "refused", "loaded", "lost", "cut", "added", "flipped", "swapped", "mixed"], 0)


def check(condition, *what):
    if not condition:
        failures.append(what)
        print("WRONG:", *what, flush=True)


class Commands:
    """Runs commands by PROGRAM; without one, each by the tool."""

    SHARE_OF_TOOL = 0.01

    def __init__(self, tool, program):
        self.tool, self.drawn = tool, random.Random(1)
        self.process = program and subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def by_tool(self, words):
        result = subprocess.run([self.tool, *words], capture_output=True, text=True)
        return result.returncode, result.stdout, result.stderr

    def run(self, *words):
        if not self.process:
            return self.by_tool(words)
        self.process.stdin.write("\t".join(words).encode() + b"\n")
        self.process.stdin.flush()
        status, *lengths = map(int, self.process.stdout.readline().split())
        answer = (status, *(self.process.stdout.read(length).decode() for length in lengths))
        if self.drawn.random() < self.SHARE_OF_TOOL:
            counts["by the tool too"] += 1
            check(answer == self.by_tool(words), "the tool answers otherwise", words, answer)
        return answer

    def close(self):
        if self.process:
            self.process.stdin.close()
            check(self.process.wait() == 0, "the program that runs commands ends with", self.process.returncode)


def verify(path, *options):
    """Returns the exit status, and the output of --json."""
    status, out, err = COMMANDS.run("verify", path, "--json", *options)
    check(status in (0, 1), path, options, err)
    return status, json.loads(out) if status in (0, 1) else {}


def codes(report):
    return {finding["code"] for finding in report["findings"]}


def expect_found(kind, path, *options, code=None):
    status, report = verify(path, *options)
    counts[kind] += 1
    check(status == 1 and report["seal"]["state"] in ("differs", "unreadable"), kind, path, options, report.get("seal"))
    if code is not None:
        check(code in codes(report), kind, path, code, codes(report))


def files_of(path):
    """Every file of a folder, or the file: paths, the seal left out."""
    if os.path.isfile(path):
        return [path]
    return [os.path.join(at, name) for at, _, names in os.walk(path) for name in names if name != SEAL]


def read(path):
    with open(path, "rb") as file:
        return file.read()


class Changed:
    """A file with other bytes, as long as this is open."""

    def __init__(self, path, content):
        self.path, self.content = path, content

    def __enter__(self):
        self.old = read(self.path)
        if self.content is None:
            os.unlink(self.path)
        else:
            with open(self.path, "wb") as file:
                file.write(self.content)

    def __exit__(self, *_):
        with open(self.path, "wb") as file:
            file.write(self.old)


def flip_bytes(path, file, every, drawn):
    content = read(file)
    places = range(len(content))
    if not every or len(content) > EVERY_BYTE:
        places = drawn.sample(places, min(PLACES, len(content)))
    name = os.path.basename(file)
    for place in places:
        changed = bytearray(content)
        changed[place] ^= 1 << drawn.randrange(8)
        with Changed(file, changed):
            # A fast check reads these of a folder: small files and metadata.
            small = name == ".metadata" or len(content) <= 1 << 20
            expect_found("flipped", path, *(["--fast"] if small and drawn.random() < 0.5 else []))


def items_of(path):
    """Returns (file, begin, length) of every chunk and value that has its own bytes in a file."""
    result = subprocess.run([TOOL, "inspect", path, "--json"], capture_output=True, text=True)
    check(result.returncode == 0, "inspect", path, result.stderr)
    chunks = [c for tensor in json.loads(result.stdout)["tensors"] for c in tensor["chunks"]]
    places = {(os.path.join(path, c["file"]), c["begin"], c["length"]) for c in chunks}
    return sorted(p for p in places if os.path.isfile(p[0]) and p[1] + p[2] <= os.path.getsize(p[0]))


def swap_items(path, drawn):
    by_size = {}
    for file, begin, length in items_of(path):
        by_size.setdefault(length, []).append((file, begin))
    pairs = [(length, a, b) for length, places in by_size.items() for a, b in itertools.combinations(places, 2)]
    for length, a, b in drawn.sample(pairs, min(MAX_SWAPS, len(pairs))):
        contents = {file: bytearray(read(file)) for file, _ in (a, b)}
        one, two = (contents[file][begin:begin + length] for file, begin in (a, b))
        if one == two or a[0] == b[0] and abs(a[1] - b[1]) < length:
            continue
        contents[a[0]][a[1]:a[1] + length], contents[b[0]][b[1]:b[1] + length] = two, one
        changes = [Changed(file, content) for file, content in contents.items()]
        for change in changes:
            change.__enter__()
        expect_found("swapped", path, code="SEAL_MISMATCH")
        for change in changes:
            change.__exit__()


def load(path):
    """Returns the content of a DCP folder by PyTorch, as text; None if it cannot load it without its model."""
    if not os.path.isfile(os.path.join(path, ".metadata")):
        return None
    state = {}
    try:
        _load_state_dict(state, storage_reader=dcp.FileSystemReader(path), planner=_EmptyStateDictLoadPlanner(),
                         no_dist=True)
        return truth.describe(state)
    except (Exception, CheckpointException):  # for example quantized chunks, or classes that it lacks
        return None


def check_case(case, work, drawn):
    source = next(p for p in (os.path.join(case, "ckpt"), os.path.join(case, "full.pt")) if os.path.exists(p))
    # Copied like cp -r: with new times in the order of names, and with the times of the original.
    path = os.path.join(work, os.path.basename(source))
    before = verify(source)
    for copy in (shutil.copy, shutil.copy2):
        shutil.rmtree(path, ignore_errors=True)
        if os.path.isdir(source):
            shutil.copytree(source, path, copy_function=copy)
        else:
            copy(source, path)
        status, report = verify(path)
        check(status == before[0] and report["seal"] is None, "copy", case, report)
        check("NEWER_DATA" not in codes(report), "false alarm", case, report["findings"])
    damaged = any(finding["severity"] == "damage" for finding in report["findings"])
    loaded = load(path)
    result = subprocess.run([TOOL, "seal", path], capture_output=True, text=True)
    seal = os.path.join(path, SEAL) if os.path.isdir(path) else f"{path}.{SEAL}"
    if damaged:
        counts["refused"] += 1
        check(result.returncode == 1 and not os.path.exists(seal), "a damaged one is sealed", case, result.stdout)
        return
    check(result.returncode == 0, "seal", case, result.stdout, result.stderr)
    for options in ([], ["--fast"]):
        status, report = verify(path, *options)
        counts["sound"] += 1
        # Names in pickles are data, which --fast does not read.
        expected = before[0] if not options or before[0] == 0 or damaged else 0
        check(status == expected and report["seal"]["state"] == "matches" and
              report["seal"]["files"] == len(files_of(path)), "sealed", case, options, report)
    if loaded is not None:
        counts["loaded"] += 1
        check(truth.diff(loaded, load(path)) == [], "PyTorch loads the sealed folder as another object", case)

    files = files_of(path)
    every = sum(map(os.path.getsize, files)) < 10_000
    for file in files:
        content = read(file)
        if os.path.isdir(path):
            with Changed(file, None):
                expect_found("lost", path, code="SEAL_MISSING")
        if content:
            with Changed(file, content[:-1]):
                expect_found("cut", path, code="SEAL_MISMATCH")
        with Changed(file, content + b"\0"):
            expect_found("cut", path, code="SEAL_MISMATCH")
        flip_bytes(path, file, every, drawn)
    flip_bytes(path, seal, every, drawn)
    with Changed(seal, read(seal)[:-1]):
        expect_found("cut", path, code="SEAL")
    if os.path.isdir(path):
        for name in ("__9_0.distcp", "notes.txt", "sub/__0_0.distcp"):
            added = os.path.join(path, name)
            os.makedirs(os.path.dirname(added), exist_ok=True)
            with open(added, "wb") as out:
                out.write(b"x")
            expect_found("added", path, code="SEAL_EXTRA")
            os.unlink(added)
        if os.path.isdir(os.path.join(path, "sub")):
            os.rmdir(os.path.join(path, "sub"))
        swap_items(path, drawn)
    status, report = verify(path)
    check(status == before[0] and report["seal"]["state"] == "matches", "put in order again", case, report)


def check_mixed(work):
    """Two saves of one layout by PyTorch, one half over the other."""
    one, two, mixed = (os.path.join(work, name) for name in ("one", "two", "mixed"))
    for at, folder in enumerate((one, two)):
        state = {f"layers.{i}.weight": torch.full((40, 3), float(i + 10 * at)) for i in range(4)}
        dcp.save(state, checkpoint_id=folder, no_dist=True)
    # PyTorch's .metadata has the time of the save, so those of two saves differ.
    for take in (".metadata", "__0_0.distcp"):
        shutil.rmtree(mixed, ignore_errors=True)
        shutil.copytree(one, mixed)
        check(subprocess.run([TOOL, "seal", mixed], capture_output=True).returncode == 0, "seal", mixed)
        if read(os.path.join(one, take)) == read(os.path.join(two, take)):
            continue
        shutil.copy(os.path.join(two, take), mixed)
        check(load(mixed) is not None, "PyTorch loads the mix", take)
        expect_found("mixed", mixed, code="SEAL_MISMATCH")
        os.unlink(os.path.join(mixed, SEAL))
        status, report = verify(mixed)
        check(status == 0, "the mix is sound but for the seal", take, report)
    # Like an interrupted save: data written in place, an hour after .metadata.
    path = os.path.join(one, ".metadata")
    os.utime(path, ns=(os.stat(path).st_atime_ns, os.stat(path).st_mtime_ns - 3600 * 10**9))
    status, report = verify(one)
    check(status == 0 and codes(report) == {"NEWER_DATA"}, "newer data", report)
    check(verify(one, "--strict")[0] == 1, "newer data with --strict")
    check(subprocess.run([TOOL, "seal", one], capture_output=True).returncode == 0, "seal", one)
    status, report = verify(one, "--strict")
    check(status == 0, "sealed, times do not count", report)


def main():
    global TOOL, COMMANDS
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--tool", required=True)
    parser.add_argument("--commands")
    parser.add_argument("--seed", type=int, default=14)
    args = parser.parse_args()
    TOOL = args.tool
    COMMANDS = Commands(args.tool, args.commands)
    if args.commands:
        counts["by the tool too"] = 0
    drawn = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as work:
        check_mixed(work)
        cases = sample.taken(args.cases, part=30)
        for number, case in enumerate(cases):
            folder = os.path.join(work, str(number))
            os.mkdir(folder)
            check_case(case.rstrip("/"), folder, drawn)
            shutil.rmtree(folder)
    COMMANDS.close()
    print(f"{len(cases)} checkpoints, seed {args.seed}: " + ", ".join(f"{n} {what}" for what, n in counts.items()) +
          f"; {len(failures)} wrong")
    # One that has no file to cut or to swap may be all that a sample holds.
    return 1 if failures or not all(counts[what] for what in (("sound", "loaded", "flipped") if sample.is_on() else counts) if what != "refused") else 0


if __name__ == "__main__":
    sys.exit(main())
