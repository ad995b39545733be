#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that `diff` calls a checkpoint and every output of consolidate for it equal.

  python check_self_diff.py CASE... --tool PATH      a CASE holds ckpt/ or full.pt, and its truth

To .pt all of it; to .h5 if the tool can write it; to .safetensors the tensors, including those inside dicts, lists and tuples.
A changed element is found in each of them.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import sample  # noqa: E402

FORMATS = ("pt", "h5", "safetensors")
# Content that an output cannot hold is refused by name, with one of these.
REFUSED = {"h5": ("UNSUPPORTED", "no HDF5"), "safetensors": ("UNSUPPORTED", "ST_")}


class Case:
    def __init__(self, folder, tool):
        self.tool = tool
        single = os.path.join(folder, "full.pt")
        self.path = single if os.path.exists(single) else os.path.join(folder, "ckpt")
        name = os.path.join(folder, "full_truth.json" if self.path == single else "truth.json")
        self.truth = {}
        if os.path.exists(name):
            with open(name, encoding="utf-8") as f:
                self.truth = json.load(f)
        self.allow = [x for g in self.truth.get("allow", []) for x in ("--allow-global", g)]

    def run(self, *args):
        return subprocess.run([self.tool, *args, *self.allow], capture_output=True, text=True)


def check(case, format, tmp):
    """Returns the problem, or None; "refused" if the format cannot hold the content."""
    out = os.path.join(tmp, "out." + format)
    drop = ["--drop-values"] if format == "safetensors" else []
    made = case.run("consolidate", case.path, out, "--no-sync", "--json", *drop)
    if made.returncode != 0:
        if any(word in made.stderr for word in REFUSED.get(format, ())):
            return "refused"
        return f"consolidate: exit {made.returncode}: {made.stderr}"
    # Further names of a tensor are only in the .safetensors' metadata.
    tied = list(json.loads(made.stdout)["tied"])
    ignore = ["--ignore-values", *(x for name in tied for x in ("--exclude", name))] if drop else []
    for a, b in (case.path, out), (out, case.path):
        done = case.run("diff", a, b, *ignore)
        if done.returncode != 0:
            return f"diff: exit {done.returncode}\n{done.stderr}{done.stdout}"
    if format != "safetensors":
        return None
    # Every tensor is there, under its name in the .pt file.
    said = [json.loads(case.run("inspect", path, "--json").stdout)["tensors"] for path in (out, os.path.join(tmp, "out.pt"))]
    found, wanted = ({t["key"] for t in tensors} for tensors in said)
    lost = wanted - found - set(tied)
    return f"not in the .safetensors: {sorted(lost)[:5]}" if lost else None


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("case", nargs="+")
    ap.add_argument("--tool", required=True)
    args = ap.parse_args()
    counts, failed = {f: [0, 0] for f in FORMATS}, 0
    for folder in sample.taken(args.case):
        case = Case(os.path.abspath(folder), args.tool)
        if "refused" in case.truth:
            print(f"not consolidated: {folder}")
            continue
        with tempfile.TemporaryDirectory() as tmp:
            for format in FORMATS:
                said = check(case, format, tmp)
                if said not in (None, "refused"):
                    failed += 1
                    print(f"FAIL  {'/'.join(folder.split(os.sep)[-2:])} .{format}: {said}", flush=True)
                elif format in counts:
                    counts[format][said == "refused"] += 1
    for format, (same, refused) in counts.items():
        print(f".{format}: {same} equal, {refused} refused by the format")
    if counts["pt"][1] or counts["pt"][0] == 0 or counts["safetensors"][0] == 0 or counts["h5"][0] == 0:
        sys.exit("nothing was compared, or a .pt was refused")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
