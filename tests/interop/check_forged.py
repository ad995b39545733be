#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Forges the arguments and states of listed names, and loads with PyTorch what fsdp-ckpt calls sound.

    check_forged.py FSDP_CKPT [--count N] [--seed N]

NumPy believes the state of a dtype: with wrong sizes, flags or fields it takes bytes of the file for pointers. Each case is a torch.save file of
listed names alone whose dtypes have a random state, at times the one that NumPy writes. What `verify` calls sound must load, in a process of its
own, without a crash; and every dtype as NumPy writes it must be sound.
"""
import argparse
import io
import json
import os
import pickle
import random
import struct
import subprocess
import sys
import tempfile
import zipfile

import numpy

NAMES = ["b1", "i1", "i4", "u8", "f2", "f4", "f8", "c16", "S5", "S0", "U3", "V8", "V1", "O8", "M8", "m8"]
LOAD = """
import sys, torch
for path in sys.stdin.read().split():
    print(path, flush=True)
    try:
        value = torch.load(path, weights_only=False)
        repr(value), str(value["version"])
    except Exception:
        pass
print("end")
"""


def text(value):
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def name(module, attribute):
    return b"c" + module.encode() + b"\n" + attribute.encode() + b"\n"


def number(value):
    return b"J" + struct.pack("<i", value)


def raw_bytes(data):
    return name("_codecs", "encode") + text(data.decode("latin1")) + text("latin1") + b"\x86R"


def dtype(said, state):
    """numpy.dtype(said, False, True) with the state: a list of numbers, texts, None, or opcodes."""
    def opcodes(item):
        return b"N" if item is None else number(item) if isinstance(item, int) else item if isinstance(item, bytes) else text(item)
    return name("numpy", "dtype") + b"(" + text(said) + b"\x89\x88tR" + b"(" + b"".join(map(opcodes, state)) + b"tb"


def written(said):
    """The state that NumPy writes, as opcodes where it is no number, text or None."""
    state = list(numpy.dtype(said).__reduce__()[2])
    if len(state) == 9:
        state[8] = pickle.dumps(state[8], 2)[2:-1]
    return state


def forged(rng):
    said = rng.choice(NAMES)
    state = written(rng.choice([said, said, rng.choice(NAMES)]))
    for _ in range(rng.randint(0, 2)):
        place = rng.randrange(len(state))
        if place == 0:
            state[0] = rng.choice([1, 2, 3, 4, 5])
        elif place == 1:
            state[1] = rng.choice(["<", ">", "|", "=", "i", ""])
        elif place == 2:
            state[2] = rng.choice([None, b"(" + dtype("O8", written("O8")) + b"(" + number(1) + b"ttt"[:2]])
        elif place in (3, 4):
            state[3] = b"(" + text("a") + b"t"
            state[4] = b"}" + text("a") + dtype("O8", written("O8")) + number(rng.choice([0, 8])) + b"\x86s"
        elif place in (5, 6, 7):
            state[place] = rng.choice([-2, -1, 0, 1, 4, 8, 16, 20, 63, 1 << 20, (1 << 31) - 1])
        else:
            del state[8]
    return dtype(said, state)


def value_of(kind, of_dtype, data):
    if kind == "scalar":
        return name("numpy._core.multiarray", "scalar") + of_dtype + raw_bytes(data) + b"\x86R"
    made = name("numpy._core.multiarray", "_reconstruct") + name("numpy", "ndarray") + number(0) + b"\x85" + raw_bytes(b"b") + b"\x87R"
    return made + b"(" + number(1) + number(1) + b"\x85" + of_dtype + b"\x89" + raw_bytes(data) + b"tb"


def write(path, value, version):
    root = b"\x80\x02}(" + text("v") + value + text("version") + version + b"u."
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", root)
        archive.writestr("archive/byteorder", b"little")
        archive.writestr("archive/version", b"3\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tool")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    version = name("torch.torch_version", "TorchVersion")
    sound, unsafe, wrong = [], 0, 0

    def verdict(path):
        said = subprocess.run([options.tool, "verify", path, "--json"], capture_output=True, text=True).stdout
        return json.loads(said).get("verdict", "error")

    with tempfile.TemporaryDirectory() as folder:
        for said in NAMES:
            path = os.path.join(folder, f"as_written_{said}.pt")
            size = numpy.dtype(said).itemsize
            write(path, value_of("scalar", dtype(said, written(said)), b"\0" * size) if said != "O8" else dtype(said, written(said)), version + text("2.11.0") + b"\x85R")
            if verdict(path) != "sound":
                wrong += 1
                print(f"{said} as NumPy writes it: {verdict(path)}")
        for case in range(options.count):
            path = os.path.join(folder, f"{case}.pt")
            data = struct.pack("<Q", 0x4141414141414141) * 4
            value = value_of(rng.choice(["scalar", "array"]), forged(rng), data[:rng.choice([1, 8, 16, 32])])
            made = version + (value if rng.random() < 0.2 else text("2.11.0")) + b"\x85" + rng.choice([b"R", b"\x81"])
            write(path, value, made)
            if verdict(path) == "sound":
                sound.append(path)
            else:
                unsafe += 1
        open_paths = list(sound)
        while open_paths:
            done = subprocess.run([sys.executable, "-W", "ignore", "-c", LOAD], input="\n".join(open_paths), capture_output=True, text=True)
            seen = done.stdout.split()
            if seen and seen[-1] == "end":
                break
            wrong += 1
            print(f"seed {options.seed}, case {os.path.basename(seen[-1])}: called sound, and torch.load ends with {done.returncode}")
            open_paths = open_paths[open_paths.index(seen[-1]) + 1:]
    print(f"{len(NAMES)} dtypes as written, {options.count} forged: {len(sound)} sound, {unsafe} not; {wrong} wrong")
    return 1 if wrong or not sound or not unsafe else 0


if __name__ == "__main__":
    sys.exit(main())
