#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random pickles: compares fsdp-ckpt's reports and output with Python.

    check_pickles.py TOOL [--count N] [--seconds N] [--seed N]

Each pickle (pickle_grammar.py) is used as a torch.save file, as a value of a torch.distributed.checkpoint folder, and bare:

- files that `verify` calls sound, and the output of `consolidate` and `reshard`, are accepted by torch.load(weights_only=True),
  except for the names of DOCUMENTED (docs/reliability.md);
- torch.load(weights_only=False) of the output runs none of the attacks in it: no canary file appears;
- a pickle with an attack in it is neither called sound nor written, and the old output stays;
- `inspect --globals` lists every name that Python's own Unpickler would import, or reports that it is not complete.

The first failure of a kind prints the pickle, disassembled by pickletools. --seconds continues until then.
"""
import argparse
import collections
import io
import json
import os
import pathlib
import pickle
import pickletools
import random
import re
import subprocess
import sys
import tempfile
import time
import warnings

warnings.simplefilter("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [HERE, os.path.join(os.path.dirname(HERE), "support")]

import torch
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo

import sample
from pickle_grammar import Grammar

# Names of the exact list that torch.load(weights_only=True) must be told about: docs/reliability.md.
DOCUMENTED = [argparse.Namespace, collections.defaultdict, pathlib.PosixPath, bytes, list, dict, tuple, int, float, bool, str]
# Names that it refuses nevertheless.
REFUSED = re.compile("Can only SETITEMS? for dict, .*, but got <class 'collections.defaultdict'>")

counts = collections.Counter()
failures = collections.OrderedDict()


def fail(kind, stream, *details):
    counts["failed"] += 1
    if kind in failures:
        return
    text = io.StringIO()
    try:
        pickletools.dis(stream, out=text)
    except Exception as error:  # a truncated stream
        text.write(f"({error})\n")
    failures[kind] = "\n".join([kind, *map(str, details), repr(stream), text.getvalue()[-3000:]])


def run(tool, *args):
    done = subprocess.run([tool, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
    if done.returncode not in (0, 1, 2):
        raise SystemExit(f"{' '.join(args)}: exit {done.returncode}\n{done.stderr}")
    return done


def archive(stream, storages):
    """Returns a file as torch.save writes it, with this pickle."""
    out = io.BytesIO()
    writer = torch._C.PyTorchFileWriter(out)
    writer.write_record("data.pkl", stream, len(stream))
    writer.write_record("byteorder", b"little", 6)
    for key, size in enumerate(storages):
        writer.write_record(f"data/{key}", bytes(size), size)
    writer.write_end_of_file()
    return out.getvalue()


def write_folder(folder, item):
    """Returns a folder with one value, whose item this is, and one tensor."""
    os.makedirs(folder)
    tensor = io.BytesIO()
    torch.save(torch.arange(4.0), tensor)
    tensor = tensor.getvalue()
    with open(os.path.join(folder, "__0_0.distcp"), "wb") as file:
        file.write(item + tensor)
    size = torch.Size([4])
    meta = dcp.Metadata(
        state_dict_metadata={"value": dcp.BytesStorageMetadata(),
                             "tensor": dcp.TensorStorageMetadata(dcp.TensorProperties(dtype=torch.float32), size, [dcp.ChunkStorageMetadata(torch.Size([0]), size)])},
        planner_data={"value": ("value",), "tensor": ("tensor",)},
        storage_data={dcp.MetadataIndex("value"): _StorageInfo("__0_0.distcp", 0, len(item)),
                      dcp.MetadataIndex("tensor", torch.Size([0]), 0): _StorageInfo("__0_0.distcp", len(item), len(tensor))})
    with open(os.path.join(folder, ".metadata"), "wb") as file:
        pickle.dump(meta, file)


def loads(path, weights_only):
    with torch.serialization.safe_globals(DOCUMENTED):
        return torch.load(path, weights_only=weights_only)


class Recorded:
    """Replaces any name, the result of calling it, and its content."""
    def __init__(self, *args, **named):
        pass

    def __call__(self, *args, **named):
        return Recorded()

    def __setitem__(self, key, value):
        pass

    def append(self, item):
        pass

    def extend(self, items):
        pass

    def add(self, item):
        pass

    def __setstate__(self, state):
        pass

    def __hash__(self):
        return id(self)


class Recorder(pickle._Unpickler):
    """Python's own machine, which imports nothing and records what it would import."""
    def __init__(self, file, names):
        super().__init__(file)
        self.names = names
        self._file_readline = lambda: self.line(file)

    @staticmethod
    def line(file):
        """Reads one like _pickle.c, which load() uses: not empty, and with an end."""
        line = file.readline()
        if len(line) < 2 or not line.endswith(b"\n"):
            raise pickle.UnpicklingError("pickle data was truncated")
        return line

    def load_inst(self):
        """The same for a MARK, which is looked for before the name."""
        if not self.metastack:
            raise pickle.UnpicklingError("could not find MARK")
        super().load_inst()

    dispatch = {**pickle._Unpickler.dispatch, pickle.INST[0]: load_inst}

    def find_class(self, module, name):
        module = {"__builtin__": "builtins", "copy_reg": "copyreg"}.get(module, module)
        self.names.add(f"{module}.{name}")
        return type("Recorded", (Recorded,), {})

    def persistent_load(self, pid):
        return Recorded()


def recorded_names(stream):
    """Returns the names of every pickle of the stream, and whether all of it was read."""
    file, names = io.BytesIO(stream), set()
    while file.tell() < len(stream):
        try:
            Recorder(file, names).load()
        except Exception:
            return names, False
    return names, True


class Case:
    def __init__(self, tool, folder, seed):
        self.tool, self.folder = tool, folder
        self.random = random.Random(seed)
        self.canary = os.path.join(folder, "canary")

    def path(self, name):
        return os.path.join(self.folder, name)

    def check_canary(self, kind, stream):
        if os.path.exists(self.canary):
            os.remove(self.canary)
            fail(f"{kind}: the attack was run", stream)

    def check_accepted(self, kind, path, stream):
        try:
            loads(path, True)
        except Exception as error:
            if REFUSED.search(str(error)):
                counts[f"{kind}, a defaultdict with entries"] += 1
                return
            # Errors of Python itself (unhashable keys, a call that fails) are not about names.
            try:
                loads(path, False)
            except Exception:
                counts[f"{kind}, Python refuses its values"] += 1
            else:
                fail(f"{kind}, not accepted", stream, error)

    def check_written(self, kind, path, stream, attacked):
        counts[f"{kind}: written"] += 1
        if attacked:
            fail(f"{kind}: an attack was written", stream)
        self.check_accepted(f"{kind}: written", path, stream)
        try:
            loads(path, False)
        except Exception:
            pass
        self.check_canary(kind, stream)

    def write(self, kind, stream, attacked, verb, source, out):
        """With an old output, which a refusal leaves unchanged."""
        with open(out, "wb") as file:
            file.write(b"old")
        done = run(self.tool, verb, source, out, "--force", "--no-sync", "--quiet")
        if done.returncode == 0:
            self.check_written(kind, out, stream, attacked)
        else:
            counts[f"{kind}: refused"] += 1
            with open(out, "rb") as file:
                if file.read() != b"old":
                    fail(f"{kind}: the old output is gone", stream, done.stderr)
        os.remove(out)

    def check_sound(self, kind, path, stream, attacked):
        done = run(self.tool, "verify", path, "--strict", "--quiet")
        if done.returncode != 0:
            counts[f"{kind}: not sound"] += 1
            return
        counts[f"{kind}: sound"] += 1
        if attacked:
            fail(f"{kind}: an attack is called sound", stream)
        if path.endswith(".pt"):
            self.check_accepted(f"{kind}: sound", path, stream)

    def archive(self):
        grammar = Grammar(self.random, self.canary)
        stream = grammar.pickle()
        attacked = bool(grammar.used)
        if self.random.random() < 0.2:
            stream, attacked = grammar.mutated(stream), False
        path = self.path("a.pt")
        with open(path, "wb") as file:
            file.write(archive(stream, grammar.storages))
        self.check_sound("file", path, stream, attacked)
        self.write("consolidate", stream, attacked, "consolidate", path, self.path("out.pt"))

    def item(self):
        grammar = Grammar(self.random, self.canary)
        stream = b"\x80\x02" + grammar.value(0) + b"."
        attacked = bool(grammar.used)
        folder = self.path("folder")
        write_folder(folder, archive(stream, grammar.storages))
        self.check_sound("item", folder, stream, attacked)
        self.write("consolidate a folder", stream, attacked, "consolidate", folder, self.path("out.pt"))
        out = self.path("out")
        done = run(self.tool, "reshard", folder, out, "--world-size", "2", "--no-sync", "--quiet")
        if done.returncode == 0 and attacked:
            fail("reshard: an attack was written", stream)
        counts["reshard: written" if done.returncode == 0 else "reshard: refused"] += 1
        subprocess.run(["rm", "-rf", out, folder], check=True)

    def bare(self):
        grammar = Grammar(self.random, self.canary, binary=False)
        stream = grammar.pickle()
        if self.random.random() < 0.3:
            stream = grammar.mutated(stream)
        path = self.path("b.pkl")
        with open(path, "wb") as file:
            file.write(stream)
        expected, whole = recorded_names(stream)
        done = run(self.tool, "inspect", path, "--globals", "--json")
        if done.returncode == 2:
            counts["bare: no checkpoint"] += 1
            # Python's own machine stops at the first opcode; otherwise it would have found a valid name.
            if any(name.isprintable() and " " not in name for name in expected):
                fail("bare: names are passed over", stream, expected, done.stderr)
            return
        report = json.loads(done.stdout)
        listed = {entry["name"] for entry in report["globals"]}
        complete = report["complete"] and done.returncode == 0
        counts["bare: complete" if complete else "bare: said to be incomplete"] += 1
        if not expected <= listed and complete:
            fail("bare: names are missing from a list that is called complete", stream, expected - listed)
        if not expected <= listed and not complete:
            counts["bare: incomplete, names missing"] += 1
        if whole and not complete and not any(code in stream for code in b"\x82\x83\x84"):
            counts["bare: Python reads it all, the tool does not"] += 1
        # Otherwise only names that getattr takes from them.
        more = {name for name in listed - expected if not any(name.startswith(known + ".") for known in expected)}
        if whole and more:
            fail("bare: names that Python does not import", stream, more)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tool")
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    seed, count = options.seed, sample.count(options.count)
    with tempfile.TemporaryDirectory() as folder:
        while seed < options.seed + count or time.monotonic() < end:
            case = Case(options.tool, folder, seed)
            case.archive()
            case.item()
            case.bare()
            case.bare()
            seed += 1
    for kind in sorted(counts):
        print(f"{counts[kind]:8d}  {kind}")
    for text in failures.values():
        print("\n" + text)
    print(f"{4 * (seed - options.seed)} pickles, {counts['failed']} failures")
    needed = ["consolidate: written", "consolidate: refused", "file: sound", "item: sound", "bare: complete", "bare: said to be incomplete"]
    missing = [kind for kind in needed if counts[kind] == 0]
    if missing:
        print("nothing was tried of:", ", ".join(missing))
    return 1 if failures or missing else 0


if __name__ == "__main__":
    sys.exit(main())
