#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packs what make.py found out into the data that fsdp-ckpt is built with (formats/families/hf/architecture_data.cpp).

    python pack.py FOUND.jsonl SETTLED.jsonl formats/families/hf/architectures.bin

Entries are those of settle.py; those of make.py for what is not there. Model types that FOUND.jsonl lacks stay as they are in the data, if these are of
the same transformers.

Each line is a model type:
    type, main (the usual class), sub (types of the configurations inside), defaults and alias (see formats/families/hf/config_values.h)
    tails:    [conditions, ranges, sizes, 1 if it may be missing, its group, 0 for none], for several entries each
    entries:  [name, number of the tail]; a name that begins with ~ has the front of the class
    classes:  front, file and module (differences of entries' numbers), renames (of files to modules, numbers as {}; none if tensors
              are more than renamed), tied, ignored (names that from_pretrained passes over)
"""
import json
import os
import re
import sys
import zlib

import transformers

import layouts


def posix(expression):
    """Returns a Python expression as a POSIX one, or nothing if it cannot be one."""
    out = expression.replace("(?:", "(").replace(r"\d", "[0-9]").replace(r"\w", "[A-Za-z0-9_]")
    return None if re.search(r"\(\?|\\[A-Za-z]|\*\?|\+\?", out) else out


def ignored_by(name):
    found = getattr(getattr(transformers, name), "_keys_to_ignore_on_load_unexpected", None) or []
    return sorted({one for one in map(posix, found) if one})


def alias_of(model_type):
    found = {}

    def walk(config, front):
        for other, own in (getattr(config, "attribute_map", None) or {}).items():
            found[front + other] = front + own
        for name in getattr(config, "sub_configs", None) or {}:
            one = getattr(config, name, None)
            if one is not None and hasattr(one, "to_dict"):
                walk(one, f"{front}{name}.")
    walk(layouts.config_of(model_type, {}), "")
    return found


def as_json(where):
    """Python's words for values, as JSON has them; None if the configuration does not tell."""
    words = {"True": "true", "False": "false", "None": "null"}
    if any(one[0] == "is" and any(kind.startswith("[") for kind in one[2]) for one in where or ()):
        return None   # lists in lists are not compared
    return [[one[0], one[1], [words.get(kind, kind) for kind in one[2]]] if one[0] == "is" else one for one in where] if where else where


def careful(found):
    """Withdraws what was seen of a class beside the usual one in too few configurations."""
    usual = found["classes"].get(found["main"], {})
    for name, made in found["classes"].items():
        if made is usual:
            continue
        for which in "file", "module":
            if which not in made:
                continue
            theirs = {entry["name"].removeprefix(usual["front"]): entry for entry in usual.get(which, usual["file"])}
            own = {entry["name"].removeprefix(made["front"]): entry for entry in made[which]}
            for key, entry in own.items():
                other = theirs.get(key)
                same = other and all(entry.get(part) == other.get(part) for part in ("if", "of", "shape"))
                # A number may be a field that was not changed, or a product of some.
                if not same and entry["shape"]:
                    entry["shape"] = [None if text and text.isdigit() and int(text) > 4 else text for text in entry["shape"]]
                if not same and any(count and count.isdigit() and int(count) > 1 for count, _ in entry.get("of", ())):
                    entry["of"] = [[None, None] for _ in entry["of"]]
            modules = {key[:at] for key in own for at, letter in enumerate(key) if letter == "."}
            front = made["front"] if any(entry["name"].startswith(made["front"]) for entry in made[which]) else ""
            for key, other in theirs.items():
                depends = "if" in other or "maybe" in other or any(where or where is None for _, where in other.get("of", ()))
                module = key.rpartition(".")[0]
                if key in own or not depends or not {module, module.rpartition(".")[0]} & modules:
                    continue
                made[which].append({**other, "name": front + key, "maybe": 1})


def packed(found, settled):
    careful(found)
    for name, made in found["classes"].items():
        made.update(settled.get((found["type"], name), {}))
    tails, entries, classes, defaults = {}, {}, {}, {}
    for name, made in found["classes"].items():
        # Where two classes disagree, nothing is known.
        for path, value in made["defaults"].items():
            if isinstance(value, list) and len(value) > 64:
                value = {"?": 1}
            defaults[path] = value if defaults.get(path, value) == value else {"?": 1}
        own = {"front": made["front"] if made["front"] != "." else ""}
        for which in "file", "module":
            if which not in made:
                continue
            numbers = []
            for entry in made[which]:
                ranges = [[count, as_json(where)] for count, where in entry["of"]] if "of" in entry else None
                tail = json.dumps([entry.get("if"), ranges, entry["shape"], int("maybe" in entry), entry.get("group", 0)])
                front = own["front"]
                word = "~" + entry["name"][len(front):] if front and entry["name"].startswith(front) else entry["name"]
                number = tails.setdefault(tail, len(tails))
                numbers.append(entries.setdefault((word, number), len(entries)))
            own[which] = [b - a for a, b in zip([0, *numbers], numbers)]
        if made.get("renames"):
            own["renames"] = made["renames"]
        own["tied"] = made["tied"]
        own["ignored"] = ignored_by(name)
        classes[name] = own
    alias = {other: own for other, own in alias_of(found["type"]).items() if own in defaults}
    return {"type": found["type"], "main": found["main"], "sub": found["sub"], "defaults": defaults, "alias": alias,
            "tails": list(map(json.loads, tails)), "entries": [list(one) for one in entries], "classes": classes}


def lines_in(path, producer):
    """Returns the lines that the data have already, by model type; none if they are of another transformers."""
    if not os.path.exists(path):
        return {}
    with open(path, "rb") as file:
        first, *lines = zlib.decompress(file.read()[8:], wbits=-15).decode().splitlines()
    return {json.loads(line)["type"]: line for line in lines} if first == producer else {}


def main(source, second, target):
    producer = f"transformers {transformers.__version__}"
    lines = lines_in(target, producer)
    with open(second) as file:
        settled = {(model_type, name): entries for model_type, name, entries in map(json.loads, file)}
    with open(source) as file:
        for line in file:
            found = json.loads(line)
            if found["classes"]:
                lines[found["type"]] = json.dumps(packed(found, settled), separators=(",", ":"))
    text = "\n".join([producer, *sorted(lines.values()), ""]).encode()
    with open(target, "wb") as file:
        deflate = zlib.compressobj(9, wbits=-15)
        file.write(len(text).to_bytes(8, "little") + deflate.compress(text) + deflate.flush())
    print(f"{len(lines)} model types, {sum(len(json.loads(line)['classes']) for line in lines.values())} classes, {len(text):,} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
