#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds what make.py found against more configurations of each class, and finds out which tensors come together.

    python settle.py FOUND.jsonl SETTLED.jsonl [PART/PARTS]

For each class: its default configuration, every field of it changed alone, and some changed at once.  What one of these contradicts is withdrawn,
and what only they have is added as tensors that may be there.  Of the entries that a configuration does not decide, those that have the same
numbers in all of them are a group: where one of these has its tensor of layer 3, the others have theirs.  A line of the result is a model type,
a class, and its entries; pack.py takes them in the place of what make.py found.
"""
import copy
import json
import os
import random
import re
import sys

import infer
import layouts
import pack

AT_ONCE = 12   # configurations with several fields changed
FEW, MANY = 3, 24   # layers


class MoreSamples:
    """The samples of a class: its fields changed alone, and some of them at once, chosen by its name."""

    def __init__(self, model_type, name):
        one = infer.Samples(model_type, name, None, deep=False)
        self.found = list(one.all())
        chance = random.Random(name)
        fields = sorted(one.by_field)
        flags = [path for path in fields if isinstance(one.base.values.get(path), bool)]
        for turn in range(AT_ONCE if fields else 0):
            # Flags bring tensors along, often two of them together.
            of = flags if turn % 2 and len(flags) > 1 else fields
            self.add(one, [(path, chance.choice(one.by_field[path]).to) for path in chance.sample(of, min(len(of), 4))])
        layers = [path for path, value in one.base.values.items() if layouts.LAYERS.search(path) and type(value) is int and value >= FEW]
        for count in FEW, MANY:
            self.add(one, [(path, count) for path in layers])
        # What is computed where it is not given, beside what it is computed from.
        for path in [path for path in one.affecting if one.base.values.get(path) is None][:3]:
            for other in one.numeric()[:8]:
                self.add(one, [(path, one.by_field[path][0].to), (other, 2 * one.base.values[other])])

    def add(self, one, fields):
        changes = dict(one.shrunk)
        for path, value in fields:
            changes.update(one.changed_alone(path, value))
        try:
            self.found.append(layouts.sample(one.model_type, one.name, changes))
        except Exception:   # of these fields no such model can be made
            pass

    def all(self):
        return self.found


def uncertain(entry):
    return "maybe" in entry or any(count is None or where is None for count, where in entry.get("of", ()))


def numbers_in(pattern, name):
    """The numbers that a name has in the places of "{}"; None if it is not of the pattern."""
    own, other = pattern.split("."), name.split(".")
    if len(own) != len(other):
        return None
    numbers = []
    for a, b in zip(own, other):
        if a == "{}" and b.isdigit():
            numbers.append(int(b))
        elif a != b:
            return None
    return tuple(numbers)


def by_pattern(layout):
    found = {}
    for name in layout:
        found.setdefault(infer.split(name, ())[0], []).append(name)
    return found


def places(entry, patterns):
    """The numbers that an entry has in a layout."""
    found = (numbers_in(entry["name"], name) for name in patterns.get(infer.split(entry["name"], ())[0], ()))
    return frozenset(numbers for numbers in found if numbers is not None)


def without_literal_factors(entries, values):
    """A size that depends on a field which is not given by default was seen with one value of the other fields: 32 * head_dim is num_heads * head_dim."""
    for entry in entries:
        for d, text in enumerate(entry["shape"] or ()):
            found = re.fullmatch(r"(\d+)\*(\w+)\|([\w.]+//[\w.]+)\*([\w.]+)", text or "")
            if found and values.get(found[4]) == int(found[1]):
                entry["shape"][d] = f"{found[2]}*{found[4]}|{found[3]}*{found[4]}"
            elif found:
                entry["shape"][d] = None


def joined_layers(entries):
    """Joins the entries of single layers, which differ in size, where a field counts the layers: of others the number is not known."""
    counts = {}
    for entry in entries:
        parts = entry["name"].split("{}")
        for at, (count, _) in enumerate(entry.get("of", ())):
            if count and layouts.LAYERS.search(count) and re.fullmatch(r"[\w.]+", count):
                counts["{}".join(parts[:at + 1])] = count
    out, joined = [], {}
    for entry in entries:
        for number in infer.PART.finditer(entry["name"]):
            front = entry["name"][:number.start()]
            if front in counts:
                name = front + "{}" + entry["name"][number.end():]
                joined.setdefault((name, front), {})[int(number[0])] = entry
                break
        else:
            out.append(entry)
    own = {entry["name"]: entry for entry in out}
    for (name, front), found in joined.items():
        if name in own:
            own[name]["of"] = [[counts[front], None], *own[name]["of"][1:]]
            continue
        place, first = front.count("{}"), found[min(found)]
        sizes = [entry["shape"] for entry in found.values()]
        shape = None
        if None not in sizes and len({len(one) for one in sizes}) == 1:
            shape = [texts.pop() if len(texts) == 1 else None for texts in ({text for text in dims if text} for dims in zip(*sizes))]
        everywhere = min(found) == 0 and max(found) == len(found) - 1
        conditions = [[one for one in entry.get("if", ()) if one[:2] != [">", counts[front]]] for entry in found.values()]
        same = all("maybe" not in entry or number > min(found) for number, entry in found.items()) and all(
            one == conditions[0] for number, one in zip(found, conditions) if "maybe" not in found[number])
        new = {"name": name, "of": list(first.get("of", ())), "shape": shape}
        new["of"].insert(place, [counts[front], [] if everywhere else None])
        if not same or "maybe" in first:
            new["maybe"] = 1
        elif conditions[0]:
            new["if"] = conditions[0]
        out.append(new)
    return out


def add_new(entries, patterns):
    """Adds what no entry is about."""
    known = {}
    for entry in entries:
        known.setdefault(infer.split(entry["name"], ())[0], []).append(entry["name"])
    for one in patterns:
        for general, names in one.items():
            if all(any(numbers_in(pattern, name) is not None for pattern in known.get(general, ())) for name in names):
                continue
            entries.append({"name": general, "maybe": 1, "shape": None})
            if "{}" in general:
                entries[-1]["of"] = [[None, None]] * general.count("{}")
            known.setdefault(general, []).append(general)


def group(entries, patterns):
    alike = {}
    for entry in filter(uncertain, entries):
        signature = tuple(places(entry, one) for one in patterns)
        if any(signature):
            alike.setdefault(signature, []).append(entry)
    for number, found in enumerate(sorted((one for one in alike.values() if len(one) > 1), key=lambda one: one[0]["name"])):
        for entry in found:
            entry["group"] = number + 1


def either_way(made, model_type, name):
    """Tensors that from_pretrained turns if it has to may be either way round in files, and are not in modules."""
    for pattern, *dims in layouts.turned(name, layouts.config_of(model_type, {})):
        made.setdefault("module", copy.deepcopy(made["file"]))
        for entry in made["file"]:
            if entry["shape"] and re.search(pattern, entry["name"].replace("{}", "0")):
                entry["shape"] = [None if d in dims else text for d, text in enumerate(entry["shape"])]


def settled(model_type, name, made):
    samples = MoreSamples(model_type, name)
    for which in "file", "module":
        if which not in made:
            continue
        patterns = [by_pattern(getattr(one, which)) for one in samples.all()]
        without_literal_factors(made[which], samples.all()[0].values)
        made[which] = joined_layers(made[which])
        infer.mend(made[which], samples, which)
        add_new(made[which], patterns)
        group(made[which], patterns)
    either_way(made, model_type, name)
    return {which: made[which] for which in ("file", "module") if which in made}


def main(source, target, part="1/1"):
    at, parts = map(int, part.split("/"))
    ready = set()
    if os.path.exists(target):
        with open(target) as file:
            ready = {tuple(json.loads(line)[:2]) for line in file}
    with open(source) as file, open(target, "a") as out:
        for number, line in enumerate(file):
            found = json.loads(line)
            if not found["classes"] or number % parts != at - 1:
                continue
            pack.careful(found)
            for name, made in found["classes"].items():
                if (found["type"], name) in ready:
                    continue
                try:
                    entries = settled(found["type"], name, made)
                except Exception as error:
                    print(found["type"], name, type(error).__name__, error, file=sys.stderr)
                    continue
                out.write(json.dumps([found["type"], name, entries]) + "\n")
                out.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
