#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns the data of fsdp-ckpt back into what make.py wrote, for settle.py to hold against more configurations.

    python unpack.py formats/families/hf/architectures.bin FOUND.jsonl [TYPE...]
"""
import json
import sys
import zlib

WORDS = {"true": "True", "false": "False", "null": "None"}


def as_python(where):
    return [[one[0], one[1], [WORDS.get(kind, kind) for kind in one[2]]] if one[0] == "is" else one for one in where] if where else where


def entries_of(about, one, which):
    out, at = [], 0
    for step in one[which]:
        at += step
        name, number = about["entries"][at]
        conditions, ranges, shape, maybe, _ = about["tails"][number]
        entry = {"name": one["front"] + name[1:] if name.startswith("~") else name, "shape": list(shape) if shape else shape}
        if conditions:
            entry["if"] = conditions
        if ranges is not None:
            entry["of"] = [[count, as_python(where)] for count, where in ranges]
        if maybe:
            entry["maybe"] = 1
        out.append(entry)
    return out


def unpacked(about):
    classes = {}
    for name, one in about["classes"].items():
        made = {which: entries_of(about, one, which) for which in ("file", "module") if which in one}
        classes[name] = {**made, "tied": one["tied"], "front": one["front"] or ".", "defaults": about["defaults"], "renames": one.get("renames")}
    return {"type": about["type"], "main": about["main"], "sub": about["sub"], "classes": classes, "not_made": {}}


def main(source, target, *types):
    with open(source, "rb") as file:
        lines = zlib.decompress(file.read()[8:], wbits=-15).decode().splitlines()[1:]
    with open(target, "w") as file:
        for about in map(json.loads, lines):
            if not types or about["type"] in types:
                file.write(json.dumps(unpacked(about)) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
