#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Parameters of fewer rows than ranks, across libfsdp (by resave_stacks), PyTorch's FSDP1 and FSDP2, and world sizes.

  python cross_stacks.py --program PATH [--worlds 1,2,3,4]

libfsdp cuts such parameters along further dimensions, so a rank's part consists of several boxes of the whole; PyTorch cuts them along the
first.  FSDP1 and FSDP2 train at every world size and save; libfsdp loads each at every world size and saves again; and FSDP1 and FSDP2 load
that at every world size.  Each time the state is, to the bit, what was saved first.
"""
import argparse
import os
import subprocess
import sys
import tempfile
import time
import warnings

warnings.simplefilter("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [HERE, os.path.join(os.path.dirname(HERE), "support"), os.path.join(os.path.dirname(HERE), "interop")]

import numpy
import torch.distributed.checkpoint as dcp

import sample
from cross_loading import Failure, Saved, check, comparable, differences
from gpt_twin import Sizes, Training
from models import CONTEXT, VOCABULARY, Experts, Stacks
from ranks import run_ranks

SIZES = Sizes(vocab=VOCABULARY, dim=10, layers=2, heads=1, seq=CONTEXT, batch=12, lr=3e-3, weight_decay=0.02)
SAVED_AT = 2


def training(kind, tokens, use_orig_params):
    return Training(kind, SIZES, tokens, use_orig_params, build=lambda sizes: Stacks(), unit=Experts)


def python_saves(rank, world, tokens, tmp):
    """FSDP1 and FSDP2: [(kind, folder)]."""
    result = []
    for kind in "fsdp1", "fsdp2":
        folder = os.path.join(tmp, f"{kind}_w{world}")
        one = training(kind, tokens, world % 2 == 0)
        one.train(SAVED_AT)
        one.save(folder)
        result.append((kind, folder))
    return result


def python_loads(rank, world, copies, tokens):
    """FSDP1 and FSDP2 load each: [(name, differences)]."""
    result = []
    for at, (original, copy) in enumerate(copies):
        for kind in "fsdp1", "fsdp2":
            one = training(kind, tokens, at % 2 == 0)
            one.resume(copy.folder, copy.optimizer_key, SAVED_AT)
            model, optimizer = one.whole_state()
            found = differences(original.truth(), comparable(model, optimizer)) if rank == 0 else []
            result.append((f"{original.name()}, saved by {copy.name()}, loaded by {kind} at {world}", found))
    return result


def chunk_counts(folder):
    """Returns {key: number of chunks}."""
    table = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    return {key: len(entry.chunks) for key, entry in table.items() if hasattr(entry, "chunks")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--worlds", default="1,2,3,4")
    arguments = parser.parse_args()
    worlds = [2, 3] if sample.is_on() else [int(world) for world in arguments.worlds.split(",")]
    begin = time.monotonic()

    def say(text):
        print(f"{time.monotonic() - begin:6.1f} s  {text}", flush=True)

    with tempfile.TemporaryDirectory() as tmp:
        tokens = os.path.join(tmp, "tokens.bin")
        numpy.random.default_rng(5).integers(0, SIZES.vocab, 601).astype("<u2").tofile(tokens)
        saved = [Saved(kind, world, folder) for world in worlds for kind, folder in run_ranks(world, python_saves, tokens, tmp)[0]]

        def resave(original, source, world, use_orig_params):
            copy = Saved("libfsdp" if use_orig_params else "libfsdp flat", world, os.path.join(tmp, f"copy{len(copies)}_w{world}"))
            done = subprocess.run([arguments.program, source.folder, copy.folder, str(world), str(int(use_orig_params))],
                                  capture_output=True, text=True)
            what = f"{source.name()} through {copy.name()}"
            check(done.returncode == 0, f"{what}: status {done.returncode}: {done.stdout[:2000]}{done.stderr[:2000]}")
            found = differences(original.truth(), copy.truth())
            check(not found, f"{what}: {found[:8]}")
            copies.append((original, copy))

        copies = []
        for world in worlds:
            for at, one in enumerate(saved):
                resave(one, one, world, (at + at // 2 + world) % 2 == 0)
        for at, (original, copy) in enumerate(list(copies)):
            if at % 5 == 0:  # cut by libfsdp, at other world sizes
                resave(original, copy, worlds[(at // 5 + 1) % len(worlds)], at % 2 == 0)
        say(f"{len(copies)} loaded and saved by libfsdp: exact")
        # Some must have rows that are several boxes, or nothing was tested.
        counts = {copy.world: chunk_counts(copy.folder) for _, copy in copies}
        for world, key in ((3, "model.blocks.0.up"), (4, "model.blocks.1.up"), (4, "optimizer_0.state.blocks.1.down.exp_avg")):
            check(world not in counts or counts[world][key] > world, f"{key} at {world} ranks: {counts.get(world, {}).get(key)} chunks")

        count = 0
        for world in worlds:
            for what, found in run_ranks(world, python_loads, copies[world % 3::3], tokens)[0]:
                check(not found, f"{what}: {found[:8]}")
                count += 1
            say(f"{count} loaded by PyTorch: exact")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        print(f"FAILED: {failure}")
        sys.exit(1)
