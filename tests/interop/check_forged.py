#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads with PyTorch and NumPy what fsdp-ckpt calls sound, of every listed name with right and wrong arguments.

    check_forged.py FSDP_CKPT [--cases N] [--seed N] [--keep FOLDER] [NAME...]

Each case is a torch.save file of a listed name as its owner writes it, with some parts changed (listed_calls.py). What `verify` calls sound, and
what `consolidate` writes, is loaded in a process of its own, which must not crash, hang, take much memory, or do anything but make objects; what
was written must equal what it was made of. What its owner wrote, unchanged, must be sound. A name of the list without a maker here fails.
"""
import argparse
import collections
import json
import os
import random
import select
import shutil
import subprocess
import sys
import tempfile
import warnings
import zipfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import sample  # noqa: E402

LOADER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "load_forged.py")
SECONDS = 20  # of one file, with the loads of a process before it


def write(path, pickled, storages):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/byteorder", b"little")
        for key, raw in enumerate(storages):
            archive.writestr(f"archive/data/{key}", raw)
        archive.writestr("archive/version", b"3\n")


class Loader:
    """A process that loads files, one after another; another one follows if it ends."""
    def __init__(self, modules):
        self.modules, self.process = modules, None

    def start(self):
        self.process = subprocess.Popen([sys.executable, "-W", "ignore", LOADER, *self.modules], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                        bufsize=1)
        assert self.process.stdout.readline() == "ready\n"

    def load(self, path):
        """Returns what was loaded, as {"end": ..., "told": ...}."""
        if self.process is None:
            self.start()
        self.process.stdin.write(path + "\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], SECONDS)[0]:
            self.close()
            return {"end": f"more than {SECONDS} s"}
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        status = self.process.wait()
        self.process = None
        return {"end": f"crash, status {status}"}

    def close(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class Check:
    def __init__(self, options, folder, modules):
        self.options, self.folder = options, folder
        self.loader, self.counts, self.failures = Loader(modules), collections.Counter(), []

    def run(self, *args):
        done = subprocess.run([self.options.tool, *args], capture_output=True, text=True, errors="replace")
        if done.returncode not in (0, 1, 2):
            self.fail(args[1], f"{args[0]} ends with {done.returncode}: {done.stderr[-500:]}")
        return done

    def fail(self, path, what):
        self.failures.append(f"{os.path.basename(path)}: {what}")
        print(self.failures[-1], flush=True)
        if self.options.keep:
            os.makedirs(self.options.keep, exist_ok=True)
            shutil.copy(path, self.options.keep)

    def loaded(self, path, what):
        told = self.loader.load(path)
        self.counts[f"{what}: " + ("loads" if told["end"] == "loads" else "PyTorch refuses" if told["end"] == "refused" else "wrong")] += 1
        if told["end"] not in ("loads", "refused"):
            self.fail(path, f"{what}: {told['end']}")
        return told

    def case(self, path, pickled, is_right):
        write(path, *pickled)
        is_sound = self.run("verify", path, "--quiet").returncode == 0
        self.counts["sound" if is_sound else "not sound"] += 1
        if is_right and not is_sound:
            self.fail(path, "as its owner writes it, and not sound")
        out = path[:-3] + ".out.pt"
        is_written = self.run("consolidate", path, out, "--no-sync", "--quiet").returncode == 0
        if is_sound or is_written:
            told = self.loaded(path, "called sound" if is_sound else "written from")
        if is_written:
            made = self.loaded(out, "written")
            if told != made:
                self.fail(path, f"what was written of it is another: {told} {made}")
            os.remove(out)
        os.remove(path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tool")
    parser.add_argument("names", nargs="*", help="dotted names; all listed ones if there are none")
    parser.add_argument("--cases", type=int, default=1600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", help="a folder for the files that failed")
    options = parser.parse_intermixed_args()
    warnings.simplefilter("ignore")
    import listed_calls  # takes seconds

    called, named = listed_calls.listed()
    makers = listed_calls.makers()
    dotted = {".".join(entry) for entry in called}
    for missing in sorted(dotted ^ set(makers)):
        print(f"{missing}: listed, and listed_calls.py does not make it, or the other way round")
    with tempfile.TemporaryDirectory() as folder:
        check = Check(options, folder, sorted({module for module, _ in called | named}))
        names = options.names or sorted(makers)
        for chosen in sample.taken(names):
            node = makers[chosen](random.Random(options.seed))
            check.case(os.path.join(folder, f"right_{chosen}.pt"), listed_calls.root(node), True)
        for case in range(sample.count(options.cases)):
            rng = random.Random(options.seed * 1_000_000 + case)
            chosen = names[rng.randrange(len(names))]
            node = listed_calls.Changes(rng, makers, called, named).case(chosen)
            check.case(os.path.join(folder, f"{options.seed}_{case}_{chosen}.pt"), listed_calls.root(node), False)
        check.loader.close()
    for kind in sorted(check.counts):
        print(f"{check.counts[kind]:8d}  {kind}")
    print(f"{len(called)} names that are called, {len(named)} that are named; {check.counts['sound']} files sound, {check.counts['not sound']} not; {len(check.failures)} wrong")
    idle = not check.counts["sound"] or not check.counts["not sound"] or not check.counts["written: loads"]
    return 1 if check.failures or idle or dotted != set(makers) else 0


if __name__ == "__main__":
    sys.exit(main())
