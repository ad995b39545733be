#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares what `export` expects of a class of transformers with what the class has, for random configurations.

    check_architectures.py FSDP_CKPT [--count N] [--seed N] [--plain | --published] [--only CLASS] [--part I/N] [--report FILE]

Of each class: a complete model, under the names of files and, wrapped, under those of modules, is taken; one that lacks a tensor, has one of another
shape, or one more is refused, by name; `import` gives tensors the names that the class's modules have. Files have no bytes but zeros. --count: so many
classes, chosen by the seed; all, if not given.
Of rare combinations of flags the data do not tell all: at most 2 in 100 complete models may be refused, and 5 in 100 lost tensors passed over.
--published: the configurations of architectures/published.py instead, of which nothing may be wrong.
"""
import argparse
import collections
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "architectures"))

import infer
import layouts
import published

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "formats", "families", "hf", "architectures.bin")
WRAPPERS = ["", "module.", "_orig_mod.", "base_model.model.", "module._orig_mod.", "_fsdp_wrapped_module."]
TRIES = 6


def write(path, shapes):
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2
        for one in shape:
            size *= one
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)


def random_sample(model_type, name, chance):
    """Returns the changes and the sample of a configuration near the small one, of which the class can be made."""
    shrunk, base = layouts.small(model_type, name)
    words = infer.words_of(name)
    fields = [path for path in base.values if not layouts.SKIPPED.search(path) and "#" not in path and not re.search(r"\.\d+$", path)]
    for _ in range(TRIES):
        changes = dict(shrunk)
        for path in chance.sample(fields, min(len(fields), chance.randint(0, 4))):
            # The first of each: doubled sizes, other flags and words, which people have, and not a size that divides by nothing.
            options = [some[0] for some in infer.others(path, base.values[path], words, base.values)]
            if options:
                changes[path] = options[0] if isinstance(base.values[path], int) else chance.choice(options)
        try:
            return changes, layouts.sample(model_type, name, changes)
        except Exception:   # this class cannot be made so: another configuration is tried
            continue
    return shrunk, base


class Tool:
    def __init__(self, tool, folder):
        self.tool, self.folder = tool, folder

    def plan(self, verb, shapes, *options):
        write(os.path.join(self.folder, "model.safetensors"), shapes)
        return subprocess.run([self.tool, verb, os.path.join(self.folder, "model.safetensors"), os.path.join(self.folder, "out"), "-n", "--config",
                               os.path.join(self.folder, "config.json"), *options], capture_output=True, text=True)

    def run(self, shapes):
        done = self.plan("export", shapes)
        # A plan says how much there is to write, and fails where the disk is smaller.
        taken = done.returncode == 0 or (" tensors with those of " in done.stdout and "NO_SPACE" in done.stderr)
        return 0 if taken else done.returncode, done.stdout + done.stderr


def import_names(tool, name, config, made):
    """Yields whether `import` renames as transformers does while it loads the files."""
    done = tool.plan("import", made.file, "--map", "none", "--json")
    if done.returncode:
        yield "imported", "NO_SPACE" in done.stderr, done.stderr
        return
    said = json.loads(done.stdout)
    kept, file, _ = layouts.reverted(name, config)
    module = {id(value): key for key, value in kept.items()}
    right = {key: module.get(id(value)) for key, value in file.items()}
    if said["renamed"] is None:
        yield "imported, names of modules not known", True, ""
        return
    yield "imported", {key: said["renamed"].get(key, key) for key in file} == right, f"{name}: {dict(list(said['renamed'].items())[:3])}"


def every_class():
    """Returns (model type, class) of those that the Auto classes know, and of those that the data have beside them."""
    found = {(model_type, name) for model_type, names in layouts.classes().items() for name in names}
    with open(DATA, "rb") as file:
        for line in zlib.decompress(file.read()[8:], wbits=-15).decode().splitlines()[1:]:
            about = json.loads(line)
            found.update((about["type"], name) for name in about["classes"])
    return sorted(found)


def check(tool, folder, model_type, name, fields, chance, plain):
    """Yields (what was tried, whether it went as it should, detail).  fields: those of the configuration; None: of a small or a random one."""
    if fields is not None:
        changes, made = fields, layouts.sample(model_type, name, fields)
    else:
        changes, made = layouts.small(model_type, name) if plain else random_sample(model_type, name, chance)
    config = layouts.config_of(model_type, changes, name)
    config.architectures = [name]
    with open(os.path.join(folder, "config.json"), "w") as file:
        file.write(config.to_json_string())
    export = Tool(tool, folder)
    about = f"{model_type} {name} {changes}"
    status, said = export.run(made.file)
    if "compared: only layers with each other" in said or "(transformers " not in said:
        yield "unknown", fields is None, about
        return
    yield "complete", status == 0, f"{about}: {said[-400:]}"
    if status:
        return
    if set(made.file) != set(made.module):
        yield from import_names(export, name, config, made)
    wrapper = chance.choice(WRAPPERS)
    status, said = export.run({wrapper + key: shape for key, shape in made.module.items()})
    yield "wrapped", status == 0, f"{about} {wrapper}: {said[-400:]}"
    if len(made.file) < 2:
        return
    kinds = {re.sub(r"(?<=\.)\d+(?=\.|$)", "{}", key): key for key in made.file}
    for lost in sorted(kinds.values()) if plain else [chance.choice(sorted(made.file))]:
        status, said = export.run({key: shape for key, shape in made.file.items() if key != lost})
        yield "lost", status == 2 and repr(lost)[1:-1] in said, f"{about} without {lost}: {said[-400:]}"
    grown = chance.choice(sorted(key for key, shape in made.file.items() if shape) or [lost])
    shape = list(made.file[grown])
    if shape:
        shape[chance.randrange(len(shape))] += 1
        status, said = export.run({**made.file, grown: tuple(shape)})
        # A size for which no expression was found is not compared.
        yield ("grown" if status == 2 and grown in said else "grown, of a size that is not known"), status in (0, 2), f"{about} with {grown} {shape}"
    status, said = export.run({**made.file, "left.over.weight": (2, 2)})
    yield "added", status == 2 and "left.over.weight" in said, f"{about}: {said[-400:]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only")
    parser.add_argument("--plain", action="store_true", help="default configurations with few layers, and of every kind of tensor one lost")
    parser.add_argument("--published", action="store_true", help="the configurations of published models that are kept here")
    parser.add_argument("--types", help="a file of model types, for these alone")
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--report")
    args = parser.parse_args()
    chance = random.Random(args.seed)
    if args.published:
        everything = [(model_type, name, fields) for model_type, name, _, fields in published.PUBLISHED]
    else:
        everything = [(*one, None) for one in every_class()]
    if args.only:
        everything = [one for one in everything if one[1] == args.only or one[0] == args.only]
    if args.types:
        with open(args.types) as file:
            wanted = set(file.read().split())
        everything = [one for one in everything if one[0] in wanted]
    if args.count:
        everything = chance.sample(everything, args.count)
    part, parts = map(int, args.part.split("/"))
    outcomes, wrong, not_made = collections.Counter(), [], 0
    with tempfile.TemporaryDirectory() as folder:
        for model_type, name, fields in everything[part - 1::parts]:
            try:
                layouts.small(model_type, name)
            except Exception:   # it cannot be made from its default configuration
                not_made += 1
                continue
            try:
                for what, right, detail in check(args.tool, folder, model_type, name, fields, chance, args.plain):
                    outcomes[what, right] += 1
                    if not right:
                        wrong.append((what, detail))
            except (TypeError, ValueError, AttributeError, KeyError) as error:   # its configuration cannot be written
                outcomes[f"no config.json: {type(error).__name__}", fields is None] += 1
    if args.report:
        with open(args.report, "w") as file:
            file.writelines(json.dumps(one) + "\n" for one in wrong)
    print(f"seed {args.seed}: {not_made} classes cannot be made; " + ", ".join(f"{what} {'as it should be' if right else 'WRONG'}: {count}"
                                                                          for (what, right), count in sorted(outcomes.items())))
    for what, detail in wrong[:20]:
        print(f"{what}: {detail}")
    most = {"complete": 0.02, "wrapped": 0.02, "lost": 0.05}
    tried = collections.Counter()
    for (what, _), count in outcomes.items():
        tried[what] += count
    bad = [what for (what, right), count in outcomes.items() if not right and (args.published or count > most.get(what, 0) * tried[what] + 1)]
    if bad or not tried["complete"] or (args.published and not_made):
        print(f"too many are wrong: {', '.join(bad) or 'nothing was tried'}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
