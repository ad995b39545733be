#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the built-in maps from transformers' modules to its files.

    python write_maps.py FOUND.jsonl formats/changes/map/maps [--table]

FOUND.jsonl: of make_maps.py. Model types that share a table of conversions share a map, as far as their names agree. Maps that this script wrote before are
removed. --table prints each table of transformers with the maps that cover it, or why there is none.

A rule is made of tensors that change alike: names are divided into what both sides begin with, what differs, and what both sides end with; numbers become
captures where they stay. Then the rules are applied to every name of every class, both ways, and a class that they do not serve gets a map of its own.
A map that takes names which have to stay, of files or of a class that has the same in files, needs a configuration: names do not tell the model.
"""
import argparse
import collections
import glob
import json
import os
import re

MARK = "# Made by tests/interop/architectures/write_maps.py"
# Names that maps had when they were written by hand.
NAMED = {"qwen2_moe": "moe", "mimo_v2_flash": "mimo-v2", "qwen3_omni_moe_thinker": "qwen3-omni-thinker"}
# Model types that these had, which have other tables of their own: whose map they share, as far as their names agree.
SHARED = {"ernie4_5_moe": "qwen2_moe", "qwen3_5_moe_text": "qwen2_moe", "minimax_m2": "mixtral", "qwen3_omni_moe_thinker": "qwen3_omni_moe_thinker"}
# What published files hold and save_pretrained does not write, by the name of the map: rules on the way to modules, and why.
ALSO_READ = {
    "moe": ("Older files hold the frequencies of the rotary embedding.", 'drop = "model.layers.{i:int}.self_attn.rotary_emb.inv_freq"'),
    "kimi-linear": ("Published files use these names for layers without experts.",
                    'from = "model.layers.{i:int}.mlp.{m:gate_proj|up_proj|down_proj}.weight"\nto = "model.layers.{i}.mlp.{m}.weight"'),
}
# Model types whose configurations can make tensors of different sizes of those that are joined or divided here, and have them alike by default.
UNEVEN = {"nemo_speechlm": "queries, keys and values, which are joined, may differ in size",
          "olmo_hybrid": "convolutions of queries, keys and values, which are one tensor, may differ in size"}
LETTERS = "ijklmnqr"
# Sizes of tensors of different sizes that are joined, by the ends of their names, with the parameters in them and where config.json has these.
HEADS = {"n_heads": "num_attention_heads", "n_kv_heads": "num_key_value_heads", "head_dim": "head_dim"}
LINEAR = {f"{kind}_{what}": f"linear_{config}" for kind, what, config in (
    ("key", "heads", "num_key_heads"), ("key", "dim", "key_head_dim"), ("value", "heads", "num_value_heads"), ("value", "dim", "value_head_dim"))}
SIZES = {
    ("q_proj", "k_proj", "v_proj"): (["n_heads * head_dim", "n_kv_heads * head_dim", "n_kv_heads * head_dim"], HEADS),
    ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"): (
        ["2 * key_heads * key_dim + value_heads * value_dim", "value_heads * value_dim", "value_heads", "value_heads"], LINEAR),
}


class Unsupported(Exception):
    """There is no map, and this is why."""


def number(text):
    return text.isdigit() and (text == "0" or text[0] != "0")


def comps(name):
    return tuple(int(one) if number(one) else one for one in name.split("."))


# --- operations -----------------------------------------------------------------------------------------------------------------------

def around(dim, inner):
    """An operation on the first dimension, applied to another one."""
    turn = f'{{ op = "transpose", dims = [0, {dim}] }}'
    return [turn, inner, turn] if dim else [inner]


def rotary(heads, to):
    return f'{{ op = "rotary", heads = {heads}, to = "{to}" }}'


def at_dim(op, dim):
    return f'"{op}"' if dim == 0 else f'{{ op = "{op}", dim = {dim} }}'


class Chain:
    """The operations of a rule, from modules to files."""

    def __init__(self, operations, sources):
        self.texts, self.spreads, self.collects, self.parameters = [], False, False, {}
        for name, about in operations:
            getattr(self, name, self.unknown)(name, about, sources)

    def key(self):
        return json.dumps([self.texts, self.spreads, self.collects, self.parameters])

    def unknown(self, name, about, sources):
        raise Unsupported(f"{name} has no operation")

    def SplitModulelist(self, name, about, sources):
        self.spreads = True
        self.texts.append(at_dim("unstack", about["dim"]))

    def MergeModulelist(self, name, about, sources):
        self.collects = True
        self.texts.append(at_dim("stack", about["dim"]))

    def Chunk(self, name, about, sources):
        if about["num_shards_attribute"]:
            raise Unsupported(f"its configuration says into how many tensors one is divided ({about['num_shards_attribute']})")
        self.texts.append(at_dim("split", about["dim"]))

    def Concatenate(self, name, about, sources):
        if about["num_shards_attribute"]:
            raise Unsupported(f"its configuration says of how many tensors one is made ({about['num_shards_attribute']})")
        if not about.get("uneven"):
            self.texts.append(at_dim("concatenate", about["dim"]))
            return
        ends = tuple(next(part for part in reversed(name.split(".")) if part not in ("weight", "bias")) for name in sources)
        if ends not in SIZES or about["dim"]:
            raise Unsupported(f"the sizes of {', '.join(ends)}, which are joined, differ")
        sizes, parameters = SIZES[ends]
        self.parameters.update({name: [field, f"text_config.{field}"] for name, field in parameters.items()})
        self.texts.append(f'{{ op = "concatenate", sizes = {json.dumps(sizes)} }}')

    def Transpose(self, name, about, sources):
        if not about["check_dims"]:   # otherwise only what is read is transposed
            self.texts.append(f'{{ op = "transpose", dims = [{about["dim0"]}, {about["dim1"]}] }}')

    def Interleave(self, name, about, sources):
        self.texts += around(about["dim"], rotary(1, "pairs" if about["inverse"] else "halves"))

    def PermuteForRope(self, name, about, sources):
        permuted = about["permute_layer_names"]
        if permuted is not None and len(sources) > 1:
            raise Unsupported("rows of queries and keys are reordered before they are joined with values, and an operation applies to all")
        self.parameters["n_heads"] = [(about["subconfig_key"] + "." if about["subconfig_key"] else "") + "num_attention_heads"]
        self.texts.append(rotary('"n_heads"', "pairs" if about["inverse"] else "halves"))

    def LinearToConv3d(self, name, about, sources):
        inner = [about["in_channels"], *about["kernel_size"]]
        size = 1
        for one in inner:
            size *= one
        self.texts.append(f'{{ op = "reshape", from = [-1, {size}], to = [-1, {", ".join(map(str, inner))}] }}')

    def ErnieSplitAndDecoupleTextVisionExperts(self, name, about, sources):
        raise Unsupported("experts of texts and of images, of other sizes, are counted on in one list")


# --- names ----------------------------------------------------------------------------------------------------------------------------

def folded(names, patterns):
    """Returns one name for each pattern, with "e" for the number that counts 0, 1, 2, ..."""
    count, rest = divmod(len(names), patterns)
    if rest or not count:
        raise Unsupported(f"{len(names)} tensors of {patterns} patterns")
    out = []
    for begin in range(0, len(names), count):
        some = [comps(name) for name in names[begin:begin + count]]
        at = [k for k, one in enumerate(some[0]) if isinstance(one, int) and all(len(other) == len(some[0]) and other[k] == i for i, other in enumerate(some))]
        if len(at) < 1 or any(other[:at[-1]] + other[at[-1] + 1:] != some[0][:at[-1]] + some[0][at[-1] + 1:] for other in some):
            raise Unsupported(f"{names[begin]} is not one of a counted list")
        out.append(some[0][:at[-1]] + ("{e}",) + some[0][at[-1] + 1:])
    return tuple(out)


def numbers(name):
    return [one for one in name if isinstance(one, int)]


def kind(name):
    return tuple("#" if isinstance(one, int) else one for one in name)


def general(instances):
    """Yields pairs of sides in which the numbers that stay are captures, ("cap", which). instances: (sources, targets), all of one kind."""
    first_sources, first_targets = instances[0]
    same = all(list(map(kind, s)) == list(map(kind, first_sources)) and list(map(kind, t)) == list(map(kind, first_targets)) for s, t in instances)
    shared = all(len({tuple(numbers(one)) for one in s}) == 1 for s, _ in instances)
    if same and shared:
        values = [numbers(s[0]) for s, _ in instances]
        made = captured(instances, values)
        if made:
            yield made
            return
    width = {len(numbers(s[0])) for s, _ in instances}
    if len(width) == 1:
        for position in reversed(range(width.pop())):
            groups = collections.defaultdict(list)
            for one in instances:
                groups[numbers(one[0][0])[position]].append(one)
            if len(groups) == 1 or len(groups) > 6:
                continue
            parts = [list(general(some)) for some in groups.values()]
            if all(len(part) == 1 for part in parts):
                for value, part in zip(groups, parts):
                    yield fixed(part[0], position, value)
                return
    if len(instances) > 6:
        raise Unsupported(f"numbers change: {'.'.join(map(str, first_sources[0]))} becomes {'.'.join(map(str, first_targets[0]))}")
    yield from instances


def fixed(pair, position, value):
    put = lambda name: tuple(value if one == ("cap", position) else one for one in name)
    return tuple(map(put, pair[0])), tuple(map(put, pair[1]))


def captured(instances, values):
    sources, targets = instances[0]
    used, out_targets = set(), []
    for which, target in enumerate(targets):
        own, last = [], -1
        of = [numbers(t[which]) for _, t in instances]
        for k in range(len(numbers(target))):
            fits = [j for j in range(len(values[0])) if all(v[j] == o[k] for v, o in zip(values, of))]
            later = [j for j in fits if j > last]
            if fits:
                last = (later or fits)[0]
                own.append(("cap", last))
            elif len({o[k] for o in of}) == 1:
                own.append(of[0][k])
            else:
                return None
        used |= {one[1] for one in own if isinstance(one, tuple)}
        out_targets.append(own)
    for other in out_targets:
        if {one[1] for one in other if isinstance(one, tuple)} != used:
            return None
    if any(j not in used and len({v[j] for v in values}) > 1 for j in range(len(values[0]))):
        return None
    def put(name, own):
        own = iter(own)
        return tuple(next(own) if isinstance(one, int) else one for one in name)
    first = [("cap", j) if j in used else values[0][j] for j in range(len(values[0]))]
    return tuple(put(one, first) for one in sources), tuple(put(one, own) for one, own in zip(targets, out_targets))


# --- rules ----------------------------------------------------------------------------------------------------------------------------

class Rule:
    def __init__(self, sources, targets, chain):
        self.sources, self.targets, self.chain, self.required = sources, targets, chain, False
        self.targets_in_full = [self.in_full(text) for text in targets]
        declared = {name: of for text in (*sources, *targets) for name, of in TOKEN.findall(text) if of}
        self.compiled = [[compiled(text, declared) for text in side] for side in (sources, targets)]

    def changes(self):
        return bool(self.chain.texts) or self.sources != self.targets_in_full


    def in_full(self, target):
        """A name of files with what its captures stand for, as names of modules have it."""
        declared = {name: of for name, of in TOKEN.findall(self.sources[0]) if of}
        return TOKEN.sub(lambda found: "{" + found.group(1) + (":" + declared[found.group(1)] if found.group(1) in declared else "") + "}", target)

    def match(self, side, name):
        """Returns the captures of a name; none if no pattern is its."""
        for pattern in self.compiled[side]:
            found = pattern.fullmatch(name)
            if found:
                return found.groupdict()
        return None


TOKEN = re.compile(r"\{(\w+)(?::([^}]*))?\}")


def compiled(pattern, declared):
    out, at, seen = "", 0, set()
    for found in TOKEN.finditer(pattern):
        out += re.escape(pattern[at:found.start()])
        name = found.group(1)
        of = declared.get(name)
        if name in seen:
            out += f"(?P={name})"
        elif of == "int" or name == "e":
            out += f"(?P<{name}>0|[1-9][0-9]*)"
        else:
            out += f"(?P<{name}>{'|'.join(map(re.escape, of.split('|')))})"
        seen.add(name)
        at = found.end()
    return re.compile(out + re.escape(pattern[at:]))


def common(sides):
    """Returns how many components all names begin with, and how many they end with."""
    first = sides[0]
    front = 0
    while all(len(one) > front and one[front] == first[front] for one in sides):
        front += 1
    back = 0
    while all(len(one) > front + back and one[-1 - back] == first[-1 - back] for one in sides):
        back += 1
    return front, back


def literal(part):
    return ".".join(map(str, part))


def choice(name, parts):
    """A capture of one of several texts, or the text if there is but one."""
    texts = sorted(map(literal, parts))
    return texts[0] if len(texts) == 1 else "{" + name + ":" + "|".join(texts) + "}"


def mention(text):
    found = re.fullmatch(r"\{(\w+):[^}]*\}", text)
    return "{" + found.group(1) + "}" if found else text


def divided(pair):
    """Divides a pair of sides into the front, the core and the end."""
    sources, targets = pair
    every = [*sources, *targets]
    front, back = common(every)
    if sources == targets:   # the last capture divides
        name = sources[0]
        front = max((k + 1 for k, one in enumerate(name) if isinstance(one, tuple)), default=0)
        back = len(name) - front
    first = sources[0]
    end = first[len(first) - back:]
    cut = lambda one: one[front:len(one) - back]
    return first[:front], (tuple(map(cut, sources)), tuple(map(cut, targets))), end


def endings(ends):
    """Yields patterns for what names end with: modules that have a weight or a bias by both together."""
    plain, modules = [], []
    for end in ends:
        (modules if end and end[-1] in ("weight", "bias") else plain).append(end)
    owners = {end[:-1] for end in modules}
    for some in ({one for one in owners if one}, {one for one in owners if not one}):
        if some:
            last = choice("p", {(end[-1],) for end in modules if end[:-1] in some})
            yield (choice("m", some) + "." if () not in some else "") + last
    if plain:
        yield "" if plain == [()] else choice("m", plain)


def spelled(parts, names):
    """The text of components, captures by their letters; `names` collects those that were declared."""
    out = []
    for one in parts:
        if isinstance(one, tuple):
            letter = LETTERS[one[1]]
            out.append("{" + letter + ("}" if letter in names else ":int}"))
            names.add(letter)
        else:
            out.append(str(one))
    return out


def joined(*parts):
    return ".".join(part for part in parts if part)


def rules_of(pairs):
    """Makes rules of {(pair of sides, key of the operations): chain}."""
    groups, chains = collections.defaultdict(lambda: collections.defaultdict(set)), {}
    for (pair, key), chain in pairs.items():
        front, core, end = divided(pair)
        head = max((k + 1 for k, one in enumerate(end) if isinstance(one, tuple)), default=0)
        tail = next((k for k, one in enumerate(front) if isinstance(one, tuple)), len(front))
        groups[key, core, front[tail:], end[:head]][front[:tail]].add(end[head:])
        chains[key] = chain
    rules = []
    for (key, core, middle, head), fronts in groups.items():
        by_ends = collections.defaultdict(set)
        for front, ends in fronts.items():
            by_ends[frozenset(ends), front == ()].add(front)
        for (ends, _), some in by_ends.items():
            for ending in endings(sorted(ends)):
                # A front beside captures is divided from them by a dot.
                at = choice("at", some) if some != {()} else ""
                sides = []
                for which, side in enumerate(core):
                    texts = []
                    for inner in side:
                        names = set()
                        if which or texts:
                            names |= set(LETTERS)
                        before, between, after = spelled(middle, names), spelled(inner, names), spelled(head, names)
                        first = at if not which and not texts else mention(at)
                        last = ending if not which and not texts else re.sub(r"\{(\w+):[^}]*\}", r"{\1}", ending)
                        texts.append(joined(first, *before, *between, *after, last))
                    sides.append(texts)
                rules.append(Rule(*sides, chains[key]))
    return rules


def order_of(rule):
    return (not rule.chain.texts, not rule.changes(), -sum(map(len, TOKEN.sub("", rule.sources[0]).split("."))), rule.sources)


def tried(rules, moves):
    """Raises if the rules do not do with a name what transformers does. moves: {(sources, targets): key of the operations}."""
    for _ in range(len(rules) ** 2 + 1):
        wrong = first_wrong(rules, moves)
        if wrong is None:
            return rules
        taker, right = wrong
        if right is None or taker is None or taker > right:
            raise Unsupported(f"no order of the rules serves {rules[taker].sources if taker is not None else 'a name that no rule takes'}")
        rules.insert(taker, rules.pop(right))
    raise Unsupported("no order of the rules serves all names")


def first_wrong(rules, moves):
    for (sources, targets), key in moves.items():
        for side, names in ((0, sources), (1, targets)):
            for name in names:
                takers = [n for n, rule in enumerate(rules) if rule.match(side, name) is not None]
                right = next((n for n in takers if rules[n].chain.key() == key and gives(rules[n], side, name, targets if side == 0 else sources)), None)
                if right is None or takers[0] != right:
                    return (takers[0] if takers else None), right
    return None


def gives(rule, side, name, wanted):
    """Whether what the rule makes with a name among its sources has the names that are wanted."""
    captures = rule.match(side, name)
    other = rule.targets if side == 0 else rule.sources
    filled = {TOKEN.sub(lambda found: captures.get(found.group(1)) if found.group(1) != "e" else "{e}", pattern) for pattern in other}
    counted = any("{e}" in one for one in filled)
    if not counted:
        return filled == set(wanted)
    tests = [re.compile(re.escape(one).replace(re.escape("{e}"), "[0-9]+")) for one in filled]
    return all(any(test.fullmatch(one) for test in tests) for one in wanted) and all(any(test.fullmatch(one) for one in wanted) for test in tests)


# --- maps -----------------------------------------------------------------------------------------------------------------------------

class Map:
    """The rules of some classes."""

    def __init__(self, classes):
        self.classes, self.moves, self.parameters, self.needs_config = classes, {}, {}, False
        pairs = collections.defaultdict(list)
        takes, made_of, chains = {}, {}, {}
        for found in classes:
            for sources, operations, targets, patterns in [*found["moves"], *found["others"]]:
                chain = Chain(operations, sources)
                key = chain.key()
                left = folded(sources, len({kind(comps(name)) for name in sources})) if chain.collects else tuple(map(comps, sources))
                right = folded(targets, patterns) if chain.spreads else tuple(map(comps, targets))
                for name in sources:
                    if takes.setdefault(name, (right, key)) != (right, key):
                        raise Unsupported(f"{name} becomes {targets[0]} and {literal(takes[name][0][0])}")
                for name in targets:
                    if made_of.setdefault(name, left) != left:
                        raise Unsupported(f"{name} is made of {sources[0]} and {literal(made_of[name][0])}")
                if (tuple(sources), tuple(targets)) in self.moves:
                    continue
                self.moves[tuple(sources), tuple(targets)] = key
                if any(self.parameters.setdefault(name, fields) != fields for name, fields in chain.parameters.items()):
                    raise Unsupported("parameters of several configurations have one name")
                pairs[tuple(map(kind, left)), key].append((left, right))
                chains[key] = chain
        made = {}
        for (_, key), some in pairs.items():
            made.update({(pair, key): chains[key] for pair in general(some)})
        self.rules = tried(sorted(rules_of(made), key=order_of), self.moves)
        self.require()

    def require(self):
        """Sets which rules must match: those of what all classes have by every configuration; if these change nothing, what changes in all by their small
        configurations, so that the map takes no model that has nothing to change."""
        def in_all(rule, names_of):
            return all(any(rule.match(0, name) is not None for name in names_of(found)) for found in self.classes)
        for rule in self.rules:
            rule.required = in_all(rule, lambda found: [name.replace("{}", "1") for name in found["always"]])
        if not any(rule.required and rule.changes() for rule in self.rules):
            for rule in self.rules:
                rule.required = rule.required or (rule.changes() and in_all(rule, lambda found: [name for sources, *_ in found["moves"] for name in sources]))

    def types(self):
        return sorted({found["type"] for found in self.classes})

    def takes(self, always, every):
        """Whether a model with the names is taken and changed. always: those that it has by any configuration, every: by some."""
        taken = lambda name: any(rule.match(0, name) is not None for rule in self.rules)
        met = lambda rule: any(rule.match(0, name) is not None for name in every)
        return all(map(taken, always)) and all(met(rule) for rule in self.rules if rule.required) and any(met(rule) for rule in self.rules if rule.changes())


def tell_apart(maps, made, plain):
    """Sets which maps need a configuration: those that take names which have to stay. plain: classes whose files have the names of modules. Names of a model
    that is but a part of others do not count where several maps take them, because then none is chosen."""
    whole = {one["type"] for one in (*made, *plain) if not one["class"].endswith("Model")}
    stay = [(one["type"] in whole, *([name.replace("{}", "0") for name in names] for names in (one["always"], one["plain"]))) for one in plain]
    stay += [(True, files, files) for files in ([name for _, _, targets, _ in one["moves"] for name in targets] for one in made)]
    for counts, always, every in stay:
        takers = [each for each in maps if each.takes(always, every)]
        for each in takers if counts or len(takers) == 1 else ():
            each.needs_config = True


def joined_maps(found):
    """Makes as few maps as the names of classes allow. Returns them, and [(class, why not)]."""
    maps, lost = [], []
    for one in found:
        if one["type"] in UNEVEN:
            lost.append((one, UNEVEN[one["type"]]))
            continue
        try:
            alone = Map([one])
        except Unsupported as error:
            lost.append((one, str(error)))
            continue
        for at, other in enumerate(maps):
            try:
                maps[at] = Map([*other.classes, one])
                break
            except Unsupported:
                continue
        else:
            maps.append(alone)
    return maps, lost


def wording(one):
    words = []
    texts = {(text, len(rule.sources)) for rule in one.rules for text in rule.chain.texts}
    kinds = {re.search(r'"(\w+)"', text).group(1) for text, _ in texts}
    if "unstack" in kinds:
        words.append("one tensor for each expert")
    if "stack" in kinds:
        words.append("one tensor for all of a list")
    if any("concatenate" in text and sources > 1 for text, sources in texts) and "unstack" not in kinds:
        words.append("some tensors joined")
    if "rotary" in kinds:
        words.append("rows in another order")
    if kinds & {"transpose", "reshape"}:
        words.append("some in another shape")
    if not words:
        words.append("other names")
    return ", ".join(words)


def text_of(one, producer, roots, also_read):
    types = one.types()
    about = f"{types[0]}" if len(types) == 1 else f"{', '.join(types[:3])}" + (f" and {len(types) - 3} more model types" if len(types) > 3 else "")
    lines = ["# SPDX-License-Identifier: Apache-2.0",
             f"{MARK} of transformers' tables {', '.join(roots)}.",
             f'description = "transformers\' {about}, as trained, to the layout of their files: {wording(one)}"',
             f'versions = "{producer}"',
             "model_type = " + (json.dumps(types[0]) if len(types) == 1 else json.dumps(types))]
    if one.needs_config:
        lines.append("needs_config = true")
    if one.parameters:
        lines += ["", "[parameters]"]
        lines += [f"{name} = {{ config = {json.dumps(fields[0] if len(fields) == 1 else fields)} }}" for name, fields in sorted(one.parameters.items())]
    for rule in one.rules:
        lines += ["", "[[rule]]"]
        for word, side in (("from", rule.sources), ("to", rule.targets)):
            lines.append(f"{word} = {json.dumps(side[0]) if len(side) == 1 else json.dumps(side)}")
        if rule.chain.spreads or rule.chain.collects:
            lines.append('over = "e"')
        if rule.chain.texts:
            lines.append(f"do = [{', '.join(rule.chain.texts)}]")
        if not rule.required:
            lines.append("optional = true")
    for why, rule in also_read:
        lines += ["", f"# {why}", "[[rule]]", rule, 'only = "reverse"', "optional = true"]
    return "\n".join(lines) + "\n"


def dashed(name):
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).replace("_", "-").lower()


def name_of(group, one, at, taken):
    """The name of a map: of the model type that its table is named after, else of the shortest one; of the kind of its class where another map has it."""
    types = one.types()
    table = min(types, key=lambda name: (name not in group, len(name), name))
    base = NAMED.get(group[0] if len(group) == 1 else table) or NAMED.get(table) or dashed(table)
    if at == 0 and f"transformers-{base}-files" not in taken:
        return base
    first = one.classes[0]
    ending = re.search(r"(Model|Backbone|For[A-Z]\w*|[A-Z][a-z]+)$", first["class"]).group(1)
    name = f"{base}-{dashed(ending).removeprefix('for-')}"
    return name if f"transformers-{name}-files" not in taken else f"{base}-{dashed(first['class'])}"


def group_of(found, roots):
    """The tables whose conversions the usual class of a model type has."""
    if found["type"] in SHARED:
        return (SHARED[found["type"]],)
    return tuple(sorted({roots[table] for table in found["tables"]}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("found")
    parser.add_argument("folder")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    with open(args.found) as file:
        about, *lines = map(json.loads, file)
    roots, producer = about["tables"], about["producer"]
    made, plain = [one for one in lines if "moves" in one], [one for one in lines if "plain" in one]
    changed = [one for one in made if any(sources != targets or len(sources) > 1 for sources, _, targets, _ in one["moves"])]
    groups = collections.defaultdict(list)
    of_type = {}
    for one in sorted(changed, key=lambda one: (not one["main"], one["type"], one["class"])):
        of_type.setdefault(one["type"], group_of(one, roots))
        groups[of_type[one["type"]]].append(one)
    for path in glob.glob(os.path.join(args.folder, "transformers-*-files.toml")):
        with open(path, encoding="utf-8") as file:
            if MARK in file.read():
                os.remove(path)
    words = set()
    covered, reasons, total = collections.defaultdict(set), collections.defaultdict(set), 0
    by_group = {group: joined_maps(groups[group]) for group in sorted(groups)}
    tell_apart([one for maps, _ in by_group.values() for one in maps], made, plain)
    for group, (maps, lost) in by_group.items():
        for at, one in enumerate(maps):
            name = name_of(group, one, at, words)
            word = f"transformers-{name}-files"
            words.add(word)
            text = text_of(one, producer, sorted({roots[table] for found in one.classes for table in found["tables"]}), [ALSO_READ[name]] if name in ALSO_READ else [])
            path = os.path.join(args.folder, word + ".toml")
            if os.path.exists(path):
                print(f"{word}: written by hand, and stays")
            else:
                with open(path, "w", encoding="ascii") as file:
                    file.write(text)
                total += len(text)
            for found in one.classes:
                for table in found["tables"]:
                    covered[table].add(word)
        for found, why in lost:
            for table in found["tables"]:
                reasons[table].add(f"{found['class']}: {why}")
    print_table(args.table, roots, lines, made, changed, covered, reasons, total)


def print_table(whole, roots, lines, made, changed, covered, reasons, total):
    same = collections.defaultdict(set)
    for one in made:
        if one not in changed:
            for table in one["tables"]:
                same[table].add(one["class"])
    errors = collections.defaultdict(set)
    for one in lines[0:]:
        if "error" in one:
            for name in (one["type"], one["class"]):
                errors[name].add(f"{one['class']} cannot be made: {one['error']}")
    count = collections.Counter()
    for table in sorted(roots):
        if table == "legacy":
            continue
        if covered[table] and not reasons[table]:
            what, text = "covered", ", ".join(sorted(covered[table]))
        elif covered[table]:
            what, text = "covered in part", ", ".join(sorted(covered[table])) + "; not " + "; ".join(sorted(reasons[table]))
        elif reasons[table]:
            what, text = "not covered", "; ".join(sorted(reasons[table]))
        elif same[table]:
            what, text = "no map is needed", f"files have the names of modules ({', '.join(sorted(same[table]))})"
        else:
            what, text = "not seen", "; ".join(sorted(errors[table])) or "no class that can be made has it"
        count[what] += 1
        if whole:
            print(f"{table}: {what}: {text}")
    print(f"{sum(count.values())} tables: " + ", ".join(f"{number} {what}" for what, number in sorted(count.items())) + f"; {total:,} bytes")


if __name__ == "__main__":
    main()
