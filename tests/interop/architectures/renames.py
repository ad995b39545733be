#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds to what make.py found which names transformers changes while it loads a class.

    python renames.py FOUND.jsonl
"""
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import layouts


def main(path):
    with open(path) as file:
        lines = [json.loads(line) for line in file]
    for found in lines:
        for name, made in found["classes"].items():
            if "module" not in made or "renames" in made:
                continue
            try:
                changes, _ = layouts.small(found["type"], name)
                made["renames"] = layouts.renames(name, layouts.config_of(found["type"], changes))
            except Exception as error:
                made["renames"] = None
                print(f"{name}: {type(error).__name__}: {str(error)[:100]}", file=sys.stderr)
            print(found["type"], name, len(made["renames"] or ()), flush=True)
    with open(path + ".new", "w") as file:
        file.writelines(json.dumps(found) + "\n" for found in lines)
    os.replace(path + ".new", path)


if __name__ == "__main__":
    main(*sys.argv[1:])
