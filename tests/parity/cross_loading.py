#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints across libfsdp (by train_gpt), PyTorch's FSDP1 and FSDP2, and world sizes.

  python cross_loading.py --train-gpt PATH [--worlds 1,2,3,4]

Every kind trains a few steps from the same weights at every world size and saves.  Every kind at every world size then loads each of these
checkpoints, and two things must hold: its state after loading is exactly what PyTorch reads in the folder, every tensor, step and option;
and when it trains on, it has the losses of the uninterrupted run.  Ranks share a fixed number of sequences, so there is one curve for all.
No size is divisible, and some ranks have no row of some parameters.
"""
import argparse
import json
import os
import sys
import tempfile
import time
import warnings

warnings.simplefilter("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [HERE, os.path.join(os.path.dirname(HERE), "support"), os.path.join(os.path.dirname(HERE), "interop")]

import numpy
import torch

import sample
from gpt_twin import Sizes, Training, read
from launch import must
from ranks import run_ranks

SIZES = Sizes(vocab=97, dim=24, layers=2, heads=3, seq=5, batch=12, lr=3e-3, weight_decay=0.02)
SAVED_AT, LAST = 3, 6
TOLERANCE = 1e-5  # of a loss
KINDS = ("libfsdp", "libfsdp flat", "fsdp1", "fsdp2")  # flat: use_orig_params 0


class Failure(Exception):
    pass


def check(condition, message):
    if not condition:
        raise Failure(message)


def same_curve(what, found, wanted):
    check(len(found) == len(wanted), f"{what}: losses {found}, expected {wanted}")
    worst = max((abs(a - b) / abs(b) for a, b in zip(found, wanted)), default=0)
    check(worst <= TOLERANCE, f"{what}: losses {found}, expected {wanted}")
    return worst


def comparable(model, optimizer):
    """{path: tensor or value} of a model's and an optimizer's state; the order of names is not compared."""
    flat = {f"model/{name}": t for name, t in model.items()}
    for name, state in optimizer["state"].items():
        flat.update({f"optimizer/{name}/{key}": value for key, value in state.items()})
    for at, group in enumerate(optimizer["param_groups"]):
        flat.update({f"options/{at}/{key}": sorted(value) if key == "params" else value for key, value in group.items()})
    return flat


def differences(wanted, found):
    lines = [f"{key}: missing" for key in wanted if key not in found] + [f"{key}: not expected" for key in found if key not in wanted]
    for key in wanted.keys() & found.keys():
        a, b = wanted[key], found[key]
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            if a.dtype != b.dtype or a.shape != b.shape:
                lines.append(f"{key}: {a.dtype} {list(a.shape)} against {b.dtype} {list(b.shape)}")
            elif not torch.equal(a, b):
                lines.append(f"{key}: {(a != b).sum().item()} of {a.numel()} elements differ")
        elif type(a) is not type(b) or a != b:
            lines.append(f"{key}: {a!r} against {b!r}")
    return lines


class Saved:
    """A folder that some kind wrote, and its content by PyTorch."""

    def __init__(self, kind, world, folder):
        self.kind, self.world, self.folder = kind, world, folder
        self.optimizer_key = "optimizer_0" if kind.startswith("libfsdp") else "optimizer"

    def name(self):
        return f"{self.kind} at {self.world}"

    def truth(self):
        state = read(self.folder)
        return comparable(state["model"], state[self.optimizer_key])


class Lib:
    """Runs train_gpt, one run at a time."""

    def __init__(self, program, tmp, tokens):
        self.program, self.tmp, self.tokens = program, tmp, tokens

    def run(self, kind, world, steps, **options):
        """The metrics' lines."""
        metrics = os.path.join(self.tmp, "metrics.jsonl")
        words = {"data": self.tokens, "vocab": SIZES.vocab, "dim": SIZES.dim, "layers": SIZES.layers, "heads": SIZES.heads, "seq": SIZES.seq,
                 "batch": SIZES.batch // world, "steps": steps, "use_orig_params": int(kind == "libfsdp"), "metrics": metrics, **options}
        if "resume" not in options:
            words.update(lr=SIZES.lr, weight_decay=SIZES.weight_decay)
        if os.path.exists(metrics):
            os.remove(metrics)
        must(world, [self.program] + [word for key, value in words.items() for word in ("--" + key.replace("_", "-"), value)])
        with open(metrics) as f:
            return [json.loads(line) for line in f]


def python_saves(rank, world, init, tokens, tmp):
    """FSDP1 and FSDP2: [(kind, folder, losses)]."""
    result = []
    for kind in "fsdp1", "fsdp2":
        folder = os.path.join(tmp, f"{kind}_w{world}")
        training = Training(kind, SIZES, tokens, use_orig_params=world % 2 == 0)
        training.load_weights(init)
        losses = training.train(SAVED_AT)
        training.save(folder)
        result.append((kind, folder, losses))
    return result


def python_loads(rank, world, saved, tokens):
    """FSDP1 and FSDP2 load each: [(kind, saved, differences, losses)]."""
    result = []
    for at, one in enumerate(saved):
        truth = one.truth() if rank == 0 else None
        for kind in "fsdp1", "fsdp2":
            training = Training(kind, SIZES, tokens, use_orig_params=at % 2 == 0)
            training.resume(one.folder, one.optimizer_key, SAVED_AT)
            model, optimizer = training.whole_state()
            found = differences(truth, comparable(model, optimizer)) if rank == 0 else []
            result.append((kind, one.name(), found, training.train(LAST)))
    return result


def lib_loads(lib, kind, world, one, curve):
    what = f"{one.name()}, loaded by {kind} at {world}"
    back = os.path.join(lib.tmp, "back")
    lines = lib.run(kind, world, SAVED_AT, resume=one.folder, save=back)
    check(lines == [], f"{what}: trained {lines}")
    found = differences(one.truth(), Saved(kind, world, back).truth())
    check(not found, f"{what}: {found[:8]}")
    meta = torch.load(os.path.join(back, "meta.pt"), weights_only=True)
    check(meta["global_step"] == SAVED_AT, f"{what}: meta.pt {meta}")
    lines = lib.run(kind, world, LAST, resume=one.folder)
    check([line["step"] for line in lines] == list(range(SAVED_AT, LAST)), f"{what}: steps {[line['step'] for line in lines]}")
    return same_curve(what, [line["loss"] for line in lines], curve[SAVED_AT:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train-gpt", required=True)
    parser.add_argument("--worlds", default="1,2,3,4")
    arguments = parser.parse_args()
    worlds = [2, 3] if sample.is_on() else [int(world) for world in arguments.worlds.split(",")]
    begin = time.monotonic()

    def say(text):
        print(f"{time.monotonic() - begin:6.1f} s  {text}", flush=True)

    with tempfile.TemporaryDirectory() as tmp:
        tokens = os.path.join(tmp, "tokens.bin")
        numpy.random.default_rng(5).integers(0, SIZES.vocab, 601).astype("<u2").tofile(tokens)
        lib = Lib(os.path.abspath(arguments.train_gpt), tmp, tokens)
        init = os.path.join(tmp, "init")
        lib.run("libfsdp", 2, 0, save=init, seed=7)
        curve = [line["loss"] for line in lib.run("libfsdp", 1, LAST, init=init)]
        check(len(curve) == LAST and len(set(curve)) == LAST, f"the uninterrupted run's losses: {curve}")

        saved, worst = [], 0
        for world in worlds:
            for kind in KINDS[:2]:
                folder = os.path.join(tmp, f"{kind.replace(' ', '_')}_w{world}")
                losses = [line["loss"] for line in lib.run(kind, world, SAVED_AT, init=init, save=folder)]
                worst = max(worst, same_curve(f"{kind} at {world}", losses, curve[:SAVED_AT]))
                saved.append(Saved(kind, world, folder))
            for kind, folder, losses in run_ranks(world, python_saves, init, tokens, tmp)[0]:
                worst = max(worst, same_curve(f"{kind} at {world}", losses, curve[:SAVED_AT]))
                saved.append(Saved(kind, world, folder))
        say(f"{len(saved)} checkpoints; losses agree to {worst:.1e}")

        count, worst = 0, 0
        for world in worlds:
            for kind, name, found, losses in run_ranks(world, python_loads, saved, tokens)[0]:
                what = f"{name}, loaded by {kind} at {world}"
                check(not found, f"{what}: {found[:8]}")
                worst = max(worst, same_curve(what, losses, curve[SAVED_AT:]))
                count += 1
            say(f"{count} loaded by PyTorch: exact, losses go on to {worst:.1e}")

        count, worst = 0, 0
        for world in worlds:
            for at, one in enumerate(saved):
                # Each kind of either value at every world size, in turns.
                kind = KINDS[(at + at // len(KINDS) + world) % 2]
                worst = max(worst, lib_loads(lib, kind, world, one, curve))
                count += 1
            say(f"{count} loaded by libfsdp: exact, losses go on to {worst:.1e}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        print(f"FAILED: {failure}")
        sys.exit(1)
