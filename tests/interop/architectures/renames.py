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


def renames_of(model_type, name):
    """What is renamed in the small configuration, and in those with one flag changed; None if tensors are more than renamed."""
    changes, _ = layouts.small(model_type, name)
    found = layouts.renames(name, layouts.config_of(model_type, changes, name))
    values = layouts.resolved(layouts.config_of(model_type, changes, name))
    flags = [path for path, value in values.items() if isinstance(value, bool) and not layouts.SKIPPED.search(path)]
    for path in flags if found is not None else ():
        try:
            more = layouts.renames(name, layouts.config_of(model_type, {**changes, path: not values[path]}, name))
        except Exception:   # this class cannot be made so
            continue
        if any(found.get(key, of) != of for key, of in (more or {}).items()):
            return None
        found.update(more or {})
    return found


def main(path):
    with open(path) as file:
        lines = [json.loads(line) for line in file]
    for found in lines:
        for name, made in found["classes"].items():
            if "module" not in made or "renames" in made:
                continue
            try:
                made["renames"] = renames_of(found["type"], name)
            except Exception as error:
                made["renames"] = None
                print(f"{name}: {type(error).__name__}: {str(error)[:100]}", file=sys.stderr)
            print(found["type"], name, len(made["renames"] or ()), flush=True)
    with open(path + ".new", "w") as file:
        file.writelines(json.dumps(found) + "\n" for found in lines)
    os.replace(path + ".new", path)


if __name__ == "__main__":
    main(*sys.argv[1:])
