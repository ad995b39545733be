#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Damages every file of checkpoints, one at a time, and compares what `salvage` writes with what PyTorch read of the undamaged ones.

  python check_salvage.py CASE... --tool PATH [--tries 2] [--seed N]
a CASE holds ckpt/ and truth.json, or full.pt and full_truth.json.

Each file is lost, cut off, gets a flipped bit, and is swapped with that of another step of the same layout: made here by PyTorch, item by item, or of
trainers' archives by other bytes in every storage.
1. Every tensor and value that is written is that of the source, bit for bit, unless the report says that no checksum tells.
2. What PyTorch's metadata say lies outside of the damage is written.    3. The source stays as it was, and a refusal writes nothing.
4. A swapped file is found by its step counts, or the report says that nothing ties it to the others.
5. A lost `.metadata` is made again from the other step, and nothing is lost then.    6. `--from` takes the rest, named in the report.
7. Status 0 means that nothing lacks, unless the lost file is one that no other names.
8. A tensor of floats that other ranks have too, as in HSDP, stays whole if one rank's file is damaged in any way.
"""
import argparse
import collections
import hashlib
import io
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import warnings
import zipfile
import zlib

warnings.simplefilter("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [HERE, os.path.join(os.path.dirname(HERE), "support")]

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

import truth

counts = collections.Counter()


class Failure(Exception):
    pass


def check(condition, message):
    if not condition:
        raise Failure(message)


def files_of(folder):
    return sorted(os.path.relpath(os.path.join(at, name), folder) for at, _, names in os.walk(folder) for name in names)


def digest(folder):
    return {name: hashlib.sha256(open(os.path.join(folder, name), "rb").read()).hexdigest() for name in files_of(folder)}


def dotted(items):
    return {path.replace("/", "."): leaf for path, leaf in items.items()}


def read_by_torch(folder):
    state = {}
    _load_state_dict(state, dcp.FileSystemReader(folder), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return dotted(truth.flat(state))


def changed(name, data):
    """Returns a file of another save: other elements, the same sizes, checksums that are right.  None where it has no elements."""
    data = bytearray(data)
    if name.endswith(".safetensors"):
        begin = 8 + struct.unpack_from("<Q", data)[0]
        data[begin:] = bytes(byte ^ 1 for byte in data[begin:])
        return data
    if name.endswith(".distcp") or not zipfile.is_zipfile(io.BytesIO(bytes(data))):
        return None
    any_changed = False
    with zipfile.ZipFile(io.BytesIO(bytes(data))) as archive:
        at = archive.start_dir
        for info in archive.infolist():
            in_directory = at
            at += 46 + sum(struct.unpack_from("<HHH", data, at + 28))
            if "/data/" not in info.filename or not info.file_size or info.compress_type:
                continue
            begin = info.header_offset + 30 + sum(struct.unpack_from("<HH", data, info.header_offset + 26))
            payload = data[begin:begin + info.file_size]
            count = struct.unpack("<f", payload)[0] if info.file_size == 4 else 0.5
            payload = struct.pack("<f", count + 1) if count.is_integer() and 0 < count < 1e6 else bytes(byte ^ 1 for byte in payload)
            data[begin:begin + info.file_size] = payload
            any_changed = True
            old, new = struct.pack("<I", info.CRC), struct.pack("<I", zlib.crc32(payload))
            for place in (in_directory + 16, info.header_offset + 14, begin + info.file_size + 4):
                if data[place:place + 4] == old:
                    data[place:place + 4] = new
    return data if any_changed else None


class Case:
    """A checkpoint, and what PyTorch knows of it."""

    def __init__(self, folder, tool, scratch):
        self.name, self.tool, self.scratch = os.path.basename(folder), tool, scratch
        whole = next((name for name in ("full.pt", "ckpt") if os.path.isfile(os.path.join(folder, name))), "")
        self.inside = whole   # what is named, in `source`
        self.source = os.path.join(folder, "ckpt")
        if self.inside:
            self.source = os.path.join(scratch, "source")
            os.mkdir(self.source)
            shutil.copy(os.path.join(folder, self.inside), self.source)
        self.failed = []
        self.replicated = self.name.startswith("per_rank_hsdp")
        self.files = files_of(self.source)
        with open(os.path.join(folder, "full_truth.json" if self.inside == "full.pt" else "truth.json"), encoding="utf-8") as file:
            described = json.load(file)
        if "items" not in described:
            described["items"] = truth.flat(torch.load(os.path.join(self.source, self.inside), weights_only=False))
        self.truth = dotted(described["items"])
        self.refused = "refused" in described   # the tensors cannot be put together, whatever is whole
        # What the layout leaves out is read if the file is lost that tells the layout.
        self.beside = {}
        for name in self.files:
            if name.startswith("random_states") and not self.inside:
                state = torch.load(os.path.join(self.source, name), weights_only=False)
                self.beside |= dotted(truth.flat({name.rsplit(".", 1)[0]: state}))
        self.weights_only = described.get("weights_only", False)
        self.allow = [x for g in described.get("allow", []) for x in ("--allow-global", g)]
        self.items = collections.defaultdict(list)   # key -> (file, begin, end)
        self.metadata = None
        if ".metadata" in self.files and not any(name.endswith((".pt", ".json")) for name in self.files):
            try:
                self.metadata = dcp.FileSystemReader(self.source).read_metadata()
            except Exception:
                pass
        if self.metadata is not None:
            for index, info in self.metadata.storage_data.items():
                self.items[index.fqn].append((info.relative_path, info.offset, info.offset + info.length))
        self.blob = any(os.path.exists(os.path.join(self.source, f)) and b'"dtype"' in open(os.path.join(self.source, f), "rb").read(1 << 16)
                        for f in self.files if f.endswith(".distcp"))
        self.steps = {leaf for key, leaf in self._steps()}
        self.other_truth = None
        self.sibling = self._other_step() or self._other_archives()

    def _steps(self):
        if self.metadata is None or self.blob:
            return
        for key, places in self.items.items():
            if ".state." in "." + key and key.endswith(".step"):
                for file, begin, end in places:
                    try:
                        yield key, int(torch.load(io.BytesIO(self.bytes_of(file)[begin:end]), weights_only=False))
                    except Exception:
                        return

    def bytes_of(self, file):
        with open(os.path.join(self.source, file), "rb") as data:
            return data.read()

    def _other_step(self):
        """Writes another step of the same layout: every number is one more.  None where its items cannot have the same sizes."""
        if self.metadata is None or self.blob or not self.items:
            return None
        folder = os.path.join(self.scratch, "apart", "step-2")   # not beside the damaged one
        shutil.copytree(self.source, folder)
        changed = {name: bytearray(self.bytes_of(name)) for name in self.files if name.endswith(".distcp")}
        for key, places in self.items.items():
            for file, begin, end in places:
                try:
                    item = torch.load(io.BytesIO(bytes(changed[file][begin:end])), weights_only=False)
                except Exception:
                    return None
                if not (isinstance(item, torch.Tensor) and type(item) is torch.Tensor and item.layout is torch.strided and item.numel()) and not (
                        isinstance(item, int) and key.endswith(".step")):
                    continue
                try:
                    more = ~item if getattr(item, "dtype", None) is torch.bool else item + 1
                    buffer = io.BytesIO()
                    torch.save(more, buffer)
                except Exception:
                    continue
                if len(buffer.getvalue()) != end - begin:
                    continue
                changed[file][begin:end] = buffer.getvalue()
        for name, data in changed.items():
            with open(os.path.join(folder, name), "wb") as out:
                out.write(data)
        try:
            self.other_truth = read_by_torch(folder)
        except (Exception, CheckpointException):   # the latter is a BaseException
            return None
        return folder

    def _other_archives(self):
        """Writes another step of trainers' archives.  None where there is only one file."""
        if self.metadata is not None or self.inside or len(self.files) < 2:
            return None
        folder = os.path.join(self.scratch, "apart", "step-2")
        shutil.copytree(self.source, folder)
        for name in self.files:
            data = changed(name, self.bytes_of(name))
            if data is not None:
                with open(os.path.join(folder, name), "wb") as out:
                    out.write(data)
        return folder

    def salvage(self, damaged, *options):
        """Returns the status, the report and the leaves of the output; and checks that the source stays."""
        before = digest(damaged)
        out = os.path.join(self.scratch, "out.pt")
        for stale in (out, out + ".salvage.json"):
            if os.path.exists(stale):
                os.remove(stale)
        done = subprocess.run([self.tool, "salvage", os.path.join(damaged, self.inside), out, "--to", "pt", "--json", "--no-sync", *self.allow, *options],
                              capture_output=True, text=True)
        counts["runs"] += 1
        check(done.returncode in (0, 1, 2), f"status {done.returncode}: {done.stderr[-1000:]}")
        check(digest(damaged) == before, "the source was changed")
        if done.returncode == 2:
            counts["refused"] += 1
            check(not os.path.exists(out) and not os.path.exists(out + ".salvage.json"), "a refusal left an output")
            return 2, done.stdout + done.stderr, {}
        report = json.loads(done.stdout)
        beside = json.load(open(out + ".salvage.json", encoding="utf-8"))
        check(beside["keys"] == report["keys"], "the report beside the output is another one")
        return done.returncode, report, dotted(truth.flat(torch.load(out, weights_only=self.weights_only)))

    def compare(self, report, written, origin, named=True):
        """Compares all that was written with the truth of its origin.  Returns the usable keys of the source.

        `named`: false where names themselves are damaged, which no checksum covers; elements are compared then.
        """
        states = {entry["key"]: entry for entry in report["keys"]}
        for key, leaf in written.items():
            entry = states.get(key)
            if entry is None and not named and leaf.get("value") == "None":
                continue   # in the place of a member of a list that is lost under another name
            if entry is None:   # a part of a value
                parts = [known for known in states if key.startswith(known + ".") or known == ""]
                entry = states[max(parts, key=len)] if parts else {"state": "whole", "origin": os.path.join(origin, self.inside)}
            if entry["origin"] is None:
                check(leaf.get("value") == "None", f"{key} is {entry['state']}, and was written")
                continue
            own = entry["origin"] == os.path.join(origin, self.inside)
            check(own or self.other_truth is not None, f"{key} comes from {entry['origin']}")
            want = {**self.beside, **self.truth} if own else self.other_truth
            if entry["state"] == "unchecked" and own:
                counts["unchecked leaves"] += 1
                continue
            if not named and key not in want and ("sha256" in leaf or "value" in leaf):
                check(any(leaf.get("sha256") == one.get("sha256") and leaf.get("value") == one.get("value") for one in want.values()),
                      f"{key} holds what no key of the source does")
                counts["names that nothing checks"] += 1
                continue
            check(key in want, f"{key} is not a key of the source")
            same = all(leaf.get(part) == want[key].get(part) for part in ("dtype", "shape", "sha256", "value", "empty"))
            check(same, f"{key} ({entry['state']}): expected {want[key]}, found {leaf}")
            counts["leaves compared"] += 1
        return {key for key, entry in states.items() if entry["state"] in ("whole", "unchecked")}

    def expect(self, usable, hit):
        """Checks that every key whose items the damage did not hit is usable.  `hit(file, begin, end)`"""
        if self.blob:
            return
        for key, places in self.items.items():
            if not any(hit(*place) for place in places):
                check(key in usable, f"{key} lies outside of the damage, and is not whole")
                counts["whole keys"] += 1
            elif all(hit(*place) for place in places):
                counts["hit keys"] += 1

    def complete(self, kind, file, written):
        """Checks that nothing lacks where the command says so.  A lost file that no other file names cannot be missed."""
        gone = [key for key in self.truth if key not in written]
        if gone and kind == "lost" and self.metadata is None:
            counts["losses that nothing tells"] += 1
            return
        check(not gone, f"status 0, and {len(gone)} keys are not written: {gone[:3]}")

    def damaged(self):
        folder = os.path.join(self.scratch, "step-1")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.source, folder)
        return folder

    def run(self, tries, rng):
        folder = self.damaged()
        status, report, written = self.salvage(folder)
        if status == 2 or self.refused:   # what is refused undamaged is refused damaged
            check(status != 0, "refused by its producer, and taken as whole")
            counts["cases refused"] += 1
            return
        own = [entry for entry in report["keys"] if entry["state"] in ("partly", "lost") and entry["key"] in self.truth]
        self.own_steps = {step for source in report["sources"] for step in source["steps"]}
        check(status == 0 or (status == 1 and not own), f"undamaged: status {status}, {own[:3]}")
        usable = self.compare(report, written, folder)
        self.expect(usable, lambda *_: False)
        for file in self.files:
            at = os.path.join(folder, file)
            size = os.path.getsize(at)
            kinds = ["lost"] + ["cut", "flip"] * tries * bool(size) + ["swap"] * (
                self.sibling is not None and (file == ".metadata" or self.bytes_of(file) != open(os.path.join(self.sibling, file), "rb").read()))
            for kind in kinds:
                folder = self.damaged()
                place = rng.randrange(size) if size else 0
                bit = rng.randrange(8)
                what = f"{self.name}: {file}: {kind} at byte {place} bit {bit}"
                counts[f"{kind} files"] += 1
                try:
                    self.one(folder, file, kind, place, bit)
                except Failure as failure:
                    self.failed.append(f"{what}: {failure}")

    def one(self, folder, file, kind, place, bit):
        at = os.path.join(folder, file)
        data = bytearray(self.bytes_of(file))
        if kind == "lost":
            os.remove(at)
        elif kind == "swap":
            shutil.copy(os.path.join(self.sibling, file), at)
        else:
            if kind == "cut":
                del data[place:]
            else:
                data[place] ^= 1 << bit
            with open(at, "wb") as out:
                out.write(data)
        status, report, written = self.salvage(folder)
        if kind == "swap":
            self.swapped(folder, file, status, report, written)
            return
        named = not (kind == "flip" and file.endswith((".metadata", ".json"))) and not (kind == "lost" and file.endswith(".index.json"))
        if status != 2:
            usable = self.compare(report, written, folder, named)
            if status == 0 and named:
                self.complete(kind, file, written)
            if file != ".metadata" and kind != "flip":
                first = 0 if kind == "lost" else place
                self.expect(usable, lambda f, begin, end: f == file and end > first)
            elif file != ".metadata":
                self.expect(usable, lambda f, begin, end: f == file and begin <= place < end)
        if self.replicated:
            check(status != 2, report)
            for key, leaf in self.truth.items():
                check("float" not in leaf.get("dtype", "") or key in written, f"{key} is in the files of other ranks, and is not written")
            counts["damages with replicas"] += 1
        if self.sibling is None or self.other_truth is None:
            return
        if file == ".metadata":
            beside = os.path.join(self.scratch, "step-2")
            shutil.copytree(self.sibling, beside)
            status, report, written = self.salvage(folder)
            shutil.rmtree(beside)
            if kind == "lost":
                check(status == 0 and report["metadata"], f"made again: {report}")
                self.expect(self.compare(report, written, folder), lambda *_: False)
            elif status != 2:
                self.compare(report, written, folder, named)
        elif kind == "lost":
            lacks = status != 2 and any(entry["state"] in ("partly", "lost") for entry in report["keys"])   # not if its items have no elements
            status, report, written = self.salvage(folder, "--from", self.sibling)
            check(status == 0, f"--from: {report}")
            self.compare(report, written, folder)
            check(report["taken"] > 0 or not lacks, "nothing was taken")

    def swapped(self, folder, file, status, report, written):
        if file == ".metadata":   # the other step's are the same
            check(status != 2, report)
            self.compare(report, written, folder)
        elif status == 2:
            check("MISMATCH" in report and "--step N" in report, report)
            counts["mixtures found"] += 1
            status, report, written = self.salvage(folder, "--step", str(max(self.steps or self.own_steps)))
            check(status != 2, report)
            self.compare(report, written, folder)
        else:
            loose = {source["name"] for source in report["sources"] if not source["tied"]}
            other = {key for key, leaf in written.items() if key in self.truth and leaf != self.truth[key]}
            if other and len(report["sources"]) == 1:   # a whole save, the other one
                counts["folders that are the other step"] += 1
                check(self.other_truth is None or all(leaf == self.other_truth[key] for key, leaf in written.items()), "a mixture")
                return
            check(not other or file in loose or os.path.basename(file) in loose, f"{sorted(other)[:3]} are of another step, and {file} counts as tied")
            counts["swaps that nothing tells"] += bool(other)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--tool", required=True)
    parser.add_argument("--tries", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    failed = 0
    for folder in args.cases:
        if not any(os.path.exists(os.path.join(folder, name)) for name in ("truth.json", "full_truth.json")):
            counts["cases without a truth"] += 1
            continue
        with tempfile.TemporaryDirectory() as scratch:
            case = Case(folder, args.tool, scratch)
            try:
                case.run(args.tries, random.Random(f"{args.seed} {os.path.basename(folder)}"))
            except Failure as failure:
                case.failed.append(f"{case.name}: {failure}")
            for failure in case.failed:
                print(f"FAILED {failure}", flush=True)
            failed += len(case.failed)
    print(f"seed {args.seed}, {len(args.cases)} cases: " + ", ".join(f"{number:,} {what}" for what, number in sorted(counts.items())))
    enough = counts["leaves compared"] > 100 and counts["whole keys"] > 100
    sys.exit(bool(failed) or not enough)


if __name__ == "__main__":
    main()
