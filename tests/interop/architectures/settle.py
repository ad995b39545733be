#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds what make.py found against more configurations of each class, and finds out which tensors come together.

    python settle.py FOUND.jsonl SETTLED.jsonl [PART/PARTS]

For each class: its default configuration, every field of it changed alone, and some changed at once.  What one of these contradicts is withdrawn,
and what only they have is added as tensors that may be there.  What is left open gets the one or two conditions that fit all of them, if there are such.
Of the entries that a configuration does not decide, those that have the same numbers in all of them are a group: where one of these has its tensor of
layer 3, the others have theirs.  A line of the result is a model type, a class, and its entries; pack.py takes them in the place of what make.py found.
"""
import copy
import itertools
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
MOST_ATOMS = 24
EMBEDDING = re.compile(r"(^|[._])(emb_size|embedding_size|embed_size|embed\w*_dim)$")
HIDDEN = re.compile(r"(^|\.)(hidden_size|d_model|dim|n_embd)$")
KINDS = re.compile(r"(layers?_(block_)?types?|block_types?|mixer_types)\.#$")   # a list with a word for each layer


class MoreSamples:
    """The samples of a class: its fields changed alone, and some of them at once, chosen by its name."""

    def __init__(self, model_type, name):
        one = infer.Samples(model_type, name, None, deep=False)
        self.one, self.found = one, list(one.all())
        chance = random.Random(name)
        fields = sorted(one.by_field)
        flags = [path for path in fields if isinstance(one.base.values.get(path), bool)]
        for turn in range(AT_ONCE if fields else 0):
            # Flags bring tensors along, often two of them together.
            of = flags if turn % 2 and len(flags) > 1 else fields
            self.add(one, [(path, chance.choice(one.by_field[path]).to) for path in chance.sample(of, min(len(of), 4))])
        layers = [path for path, value in one.base.values.items() if layouts.LAYERS.search(path) and type(value) is int and value >= FEW]
        for path in [path.removesuffix(".#") for path in one.base.values if KINDS.search(path)]:
            self.add(one, [(path, 2 * list(one.base.values[path]))])
        for count in FEW, MANY:
            self.add(one, [(path, count) for path in layers])
        # Where these are equal, there is no projection.
        self.unlike = [(path, other) for path, other in itertools.permutations(one.affecting, 2)
                       if EMBEDDING.search(path) and HIDDEN.search(other) and
                       path.rpartition(".")[0] == other.rpartition(".")[0] and
                       type(one.base.values[other]) is int]
        for path, other in self.unlike:
            self.add(one, [(path, one.base.values[other])])
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
            found = re.fullmatch(r"(\d+)\*([\w.]+)\|([\w.]+//[\w.]+)\*([\w.]+)", text or "")
            if found and values.get(found[4]) == int(found[1]):
                entry["shape"][d] = f"{found[2]}*{found[4]}|{found[3]}*{found[4]}"
            elif found:
                entry["shape"][d] = None


def given_heads(entries, model_type, name, which):
    """The size of a head that code asks for, and configurations need not have, counts before the quotient, where one that gives it says so."""
    changes, usual = layouts.small(model_type, name)
    for path in infer.asked_of(model_type, name):
        front = path.removesuffix("head_dim")
        quotient = f"{front}hidden_size//{front}num_attention_heads"
        places = [(entry, d) for entry in entries for d, text in enumerate(entry["shape"] or ()) if quotient in (text or "") and "|" not in text]
        if front == path or path in usual.values or not places:
            continue
        size = infer.evaluated(quotient, usual.values)
        one = layouts.sample(model_type, name, {**changes, path: 2 * size})
        layout = getattr(one, which)
        patterns = by_pattern(layout)
        for entry, d in places:
            text = entry["shape"][d].replace(quotient, path)
            if {layout[key][d] for key in names_of(entry, patterns)} == {infer.evaluated(text, one.values)}:
                entry["shape"][d] = f"{text}|{entry['shape'][d]}"


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


def count_by_fields(entries, one):
    """A number of layers that nothing changed is that of the field which has it: of such a field no other value could be tried."""
    base, fields = one.base.values, {}
    for path, value in base.items():
        if type(value) is int and value > FEW and (layouts.LAYERS.search(path) or KINDS.search(path)) and path not in one.by_field:
            fields.setdefault(str(value), []).append(path)
    for entry in entries:
        for found in entry.get("of", ())[:1]:
            paths = fields.get(found[0], ())
            if not paths:
                continue
            usual = [path for path in paths if re.search(r"(^|\.)(num_|n_)(hidden_)?layers$", path)]
            inside = {re.sub(r"\.?\w+(\.#)?$", "", path) for path in paths}
            told = [*usual, *paths][0] if len(usual) < 2 and len(inside) == 1 else None
            found[:] = [told, found[1] if told else None]


def names_of(entry, patterns):
    return {entry["name"].format(*numbers) for numbers in places(entry, patterns)}


def weight_of(bias):
    return bias.removesuffix("bias") + "weight"


def biases_as_weights(entries, patterns, samples, which):
    """A bias that comes with a flag has the first size of its weight, of which more was seen.

    Where they are of one size in all configurations.
    """
    weights = {entry["name"]: entry for entry in entries if entry["shape"] and entry["shape"][0]}
    layouts_ = [getattr(one, which) for one in samples.all()]
    for entry in entries:
        open_ = entry["name"].endswith(".bias") and ("if" in entry or "maybe" in entry)
        weight = weights.get(weight_of(entry["name"])) if open_ else None
        if not weight or entry["shape"] is None or len(entry["shape"]) != 1:
            continue
        sizes = {(layout[name][0], layout.get(weight_of(name), (None,))[0])
                 for layout, one in zip(layouts_, patterns) for name in names_of(entry, one)}
        if sizes and all(a == b for a, b in sizes):
            entry["shape"] = [weight["shape"][0]]


def is_some_of(name, general):
    """Returns whether a pattern of names is another one with some of its numbers given."""
    own, other = name.split("."), general.split(".")
    return name != general and len(own) == len(other) and all(
        a == b or (b == "{}" and a.isdigit()) for a, b in zip(own, other))


def biases_of_single_weights(entries, patterns):
    """Returns the entries, where open ones of biases are divided as those of the weights are.

    Weights may be of different sizes; they have to be where the biases are, in all configurations.
    """
    out = []
    for entry in entries:
        weights = []
        if uncertain(entry) and entry["name"].endswith(".bias"):
            general = weight_of(entry["name"])
            weights = [other for other in entries if is_some_of(other["name"], general)]
        if weights and not any(map(uncertain, weights)) and all(
                set(map(weight_of, names_of(entry, one))) ==
                set().union(*(names_of(other, one) for other in weights)) for one in patterns):
            out += [{**other, "name": other["name"].removesuffix("weight") + "bias",
                     "shape": entry["shape"] and list(entry["shape"])} for other in weights]
        else:
            out.append(entry)
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


def atoms_of(samples):
    """The conditions that one field makes, of those that bring tensors along."""
    everything = [one.values for one in samples.all()]
    found = []
    for path in samples.one.affecting:
        kinds = {str(values.get(path)): values.get(path) for values in everything}
        if any(isinstance(kind, str) for kind in kinds.values()):
            found += [(word, path, kind) for kind in kinds.values() if isinstance(kind, str) for word in ("==", "!=")]
        elif len({bool(kind) for kind in kinds.values()}) == 2:
            found += [("true", path), ("false", path)]
    return found[:MOST_ATOMS]


def as_told(entry, values):
    """The numbers that the ranges of an entry say; None if they do not."""
    if any(count is None or infer.evaluated(count, values) is None for count, _ in entry.get("of", ())):
        return None
    found = list(infer.expected([{"name": entry["name"], "of": entry.get("of", ()), "shape": None}], values))
    return frozenset(numbers_in(entry["name"], name) for name, *_ in found) if all(must for _, _, must, _ in found) else None


OPPOSITE = {"true": "false", "false": "true", "==": "!=", "!=": "=="}


def decided(entry, actual, everything, atoms, always, affecting=(), unlike=()):
    """Returns the entries of a known condition that say what an entry leaves open; nothing if there are none. always: there may be no condition."""
    told = [as_told(entry, values) for values in everything]
    single = [(one,) for one in (*atoms, *unlike)]
    for conditions in [*[()] * always, *single, *itertools.combinations(atoms, 2)]:
        inside = [infer.holds_all(conditions, values) for values in everything]
        if any(inside) and all(there == (may if within else frozenset()) for there, may, within in zip(actual, told, inside)):
            return [with_conditions(entry, conditions)]
    # One condition or the other.
    for a, b in itertools.combinations(atoms, 2):
        inside = [infer.holds(a, values) or infer.holds(b, values) for values in everything]
        if not all(inside) and all(there == (may if within else frozenset())
                                   for there, may, within in zip(actual, told, inside)):
            otherwise = (OPPOSITE[a[0]], *a[1:])
            return [with_conditions(entry, [a]), with_conditions(entry, [otherwise, b])]
    if entry["name"].count("{}") != 1 or entry["of"][0][0] is None:
        return []
    count = entry["of"][0][0]
    if count.isdigit():
        # The same numbers everywhere are names.
        seen = {one for one in actual if one}
        names = sorted(next(iter(seen))) if len(seen) == 1 and all(actual) else ()
        return [{"name": entry["name"].format(*numbers), "shape": entry["shape"]} for numbers in names]
    # The layers of one kind with a flag, and others without it.
    lists = [path for path, value in everything[0].items() if isinstance(value, list)]
    whole = [(values, infer.evaluated(count, values), {numbers[0] for numbers in there})
             for values, there in zip(everything, actual)]
    if all(total for _, total, _ in whole):
        one = {"name": entry["name"], "of": [[count, infer.filters(whole, lists, lists)]],
               "shape": entry["shape"]}
        if one["of"][0][1] is not None and all(as_told(one, values) == there
                                               for values, there in zip(everything, actual)):
            return [one]
    for word, path, *_ in atoms:
        if word != "true":
            continue
        found = []
        for side in ("true", path), ("false", path):
            stacks = [(values, infer.evaluated(count, values), {numbers[0] for numbers in there})
                      for values, there in zip(everything, actual) if infer.holds(side, values)]
            if not any(there for *_, there in stacks):
                continue
            where = infer.filters(stacks, lists, [path]) if all(total for _, total, _ in stacks) else None
            if where is None and all(total for _, total, _ in stacks):
                numbers = [one for one in affecting if type(everything[0].get(one)) is int]
                where = infer.pairs_of(stacks, lists, numbers, [*lists, *numbers])
            one = {"name": entry["name"], "if": [side], "of": [[count, where]], "shape": entry["shape"]}
            if where is None or any(as_told(one, values) != {(number,) for number in there} for values, _, there in stacks):
                break
            found.append(one)
        else:
            return found
    return []


def with_conditions(entry, conditions):
    own = {key: one for key, one in entry.items() if key not in ("maybe", "if")}
    return {**own, "if": list(conditions)} if conditions else own


def decide(entries, patterns, samples, tied):
    """Puts known conditions in the place of open ones. Without one there has to be what others are tied to."""
    everything, atoms = [one.values for one in samples.all()], atoms_of(samples)
    unlike = [("differs", *two) for two in samples.unlike]
    names = {}
    for entry in entries:
        names[entry["name"]] = names.get(entry["name"], 0) + 1
    out = []
    for entry in entries:
        found = []
        if uncertain(entry) and names[entry["name"]] == 1:
            actual = [places(entry, one) for one in patterns]
            if any(actual):
                found = decided(entry, actual, everything, atoms, entry["name"] in tied,
                                samples.one.affecting, unlike)
        out += found or [entry]
    return out


def group(entries, patterns, samples):
    alike, lonely = {}, []
    everything = [one.values for one in samples.all()]
    for entry in entries:
        if not uncertain(entry) and not any(infer.has_no_default(path, samples.one.model_type, samples.one.name) for path in infer.used_in([entry])):
            continue
        signature = tuple(places(entry, one) for one in patterns)
        if any(signature):
            alike.setdefault(signature, []).append(entry)
    for signature, (entry, *others) in list(alike.items()):
        if others:
            continue
        # Where the condition holds that it needs, it may have the numbers of others.
        for conditions in [entry["if"]] if "if" in entry else [[one] for one in atoms_of(samples)]:
            inside = [infer.holds_all(conditions, values) for values in everything]
            if any(there for there, within in zip(signature, inside) if not within) or sum(inside) < FEW:
                continue
            company = next((other for other in alike if other != signature and "if" not in alike[other][0] and
                            all(a == b for a, b, within in zip(signature, other, inside) if within)), None)
            if company:
                lonely.append((entry, conditions, company))
                break
    for entry, conditions, company in lonely:
        entry["if"] = conditions
        alike[company].append(entry)
    for number, found in enumerate(sorted((one for one in alike.values() if len(one) > 1), key=lambda one: one[0]["name"])):
        for entry in found:
            entry["group"] = number + 1


def either_way(made, model_type, name):
    """Tensors that from_pretrained turns if it has to may be either way round in files, and are not in modules."""
    for pattern, *dims in layouts.turned(name, layouts.config_of(model_type, {}, name)):
        made.setdefault("module", copy.deepcopy(made["file"]))
        for entry in made["file"]:
            if entry["shape"] and re.search(pattern, entry["name"].replace("{}", "0")):
                entry["shape"] = [None if d in dims else text for d, text in enumerate(entry["shape"])]


def settled(model_type, name, made):
    samples = MoreSamples(model_type, name)
    defaults = {path: value for path, value in made["defaults"].items() if not infer.has_no_default(path, model_type, name)}
    for which in "file", "module":
        if which not in made:
            continue
        patterns = [by_pattern(getattr(one, which)) for one in samples.all()]
        without_literal_factors(made[which], samples.all()[0].values)
        given_heads(made[which], model_type, name, which)
        made[which] = joined_layers(made[which])
        count_by_fields(made[which], samples.one)
        biases_as_weights(made[which], patterns, samples, which)
        infer.mend(made[which], samples, which)
        add_new(made[which], patterns)
        made[which] = biases_of_single_weights(made[which], patterns)
        made[which] = decide(made[which], patterns, samples, set(made["tied"].values()))
        group(made[which], patterns, samples)
    either_way(made, model_type, name)
    found = {which: made[which] for which in ("file", "module") if which in made}
    used = set().union(*map(infer.used_in, found.values()))
    return {**found, "defaults": {**defaults, **infer.defaults_of(samples.one, used - set(defaults))}}


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
