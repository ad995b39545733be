#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds out what the installed transformers does to the tensors of every class that it converts, for write_maps.py.

    python make_maps.py formats/families/hf/architectures.bin FOUND.jsonl [TYPE...]

The data name the model types of which files of a class have other names than its modules, and names that the classes have by other configurations. The first line has the
version and the tables: {name: the table that it is another name of}; each other line is a class: what conversions.moves_of says, "always": tensors that the
class has by every configuration and that are not tied, numbers as {}, "main": whether it is the usual class of its model type. One that cannot be made has
"error" instead, and one of which the data know that files have the names of modules, "plain": all names.
"""
import json
import multiprocessing
import os
import sys
import zlib

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import conversions
import layouts
import transformers
import unpack


def candidates(data, types):
    """Yields (model type, class, names of modules that the data have, what else a line says): classes that the tables name, or whose modules the data
    know."""
    known, mains = {}, set()
    with open(data, "rb") as file:
        for about in map(json.loads, zlib.decompress(file.read()[8:], wbits=-15).decode().splitlines()[1:]):
            found = unpack.unpacked(about)
            mains.add((about["type"], about["main"]))
            for name, one in found["classes"].items():
                known[about["type"], name] = [key for key in one.get("module", ()) if key["name"] not in one["tied"]], one.get("module")
    every = {(model_type, name) for model_type, names in layouts.every_class().items() for name in names}
    changed = {model_type for (model_type, _), (_, module) in known.items() if module}
    for model_type, name in sorted(every | known.keys()):
        if types and model_type not in types:
            continue
        own, module = known.get((model_type, name), ((), None))
        if model_type in changed or model_type in conversions.tables() or name in conversions.tables():
            # Numbers of one kind, twice: to see whether they stay.
            more = [key["name"].replace("{}", number) for key in module or () for number in ("1", "2")]
            yield model_type, name, more, {"always": [key["name"] for key in own if always(key)], "main": (model_type, name) in mains}


def plain(data):
    """Yields lines of the classes whose files have the names of modules."""
    with open(data, "rb") as file:
        for about in map(json.loads, zlib.decompress(file.read()[8:], wbits=-15).decode().splitlines()[1:]):
            for name, one in unpack.unpacked(about)["classes"].items():
                if "module" not in one:
                    yield {"type": about["type"], "class": name, "always": [key["name"] for key in one["file"] if always(key) and key["name"] not in one["tied"]],
                           "plain": [key["name"] for key in one["file"]]}


def always(key):
    return "if" not in key and "maybe" not in key and not any(where for _, where in key.get("of", ()))


def found_out(one):
    model_type, name, more, beside = one
    try:
        return conversions.moves_of(model_type, name, more) | beside
    except Exception as error:   # of its configuration, or a package that is not here
        return {"type": model_type, "class": name, "error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}


def main(data, target, *types):
    with open(target, "w") as file, multiprocessing.Pool(2) as pool:
        roots = {table: conversions.root_of(table) for table in conversions.tables()}
        file.write(json.dumps({"producer": f"transformers {transformers.__version__}", "tables": roots}) + "\n")
        for found in pool.imap(found_out, candidates(data, types), chunksize=4):
            file.write(json.dumps(found) + "\n")
            file.flush()
        for found in plain(data):
            if not types or found["type"] in types:
                file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
