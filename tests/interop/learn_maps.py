# SPDX-License-Identifier: Apache-2.0
"""Rules of a map, learned from what a producer's own code does to tensors whose elements are numbered.

  rules = learn_maps.learn([(own, hf, numbers, added), ...], sizes)

`own` and `hf` are state dicts of one model before and after the producer's conversion, which moved() runs: numbered() makes `own`, so that each
element of `hf` tells where it comes from.  `added`: what the conversion adds, by name.  Several models show which names are always there, and which numbers in names are layers.  `numbers`: the values
of the parameters of this model, by name.  `sizes`: how the parts of a split may be large, and what a reshape may make, in expressions.

What is found holds for these models alone: check_trainer_maps.py compares on others.
"""
import bisect
import dataclasses
import itertools
import json
import re

import torch


def numbered(shapes):
    """A state dict whose elements are 1, 2, 3, ...  `shapes`: by name."""
    out, at = {}, 1
    for name, shape in shapes.items():
        count = torch.Size(shape).numel()
        out[name] = torch.arange(at, at + count, dtype=torch.float64).reshape(shape)
        at += count
    return out


def moved(convert, own):
    """What a conversion makes of numbered elements, without the number that it adds to all of a tensor, and these numbers by name."""
    zeros = convert({name: torch.zeros_like(tensor) for name, tensor in own.items()})
    added = {name: float(tensor.flatten()[0]) for name, tensor in zeros.items() if tensor.any()}
    if any((zeros[name] != number).any() for name, number in added.items()):
        raise ValueError("the conversion adds several numbers to one tensor")
    return {name: tensor - added.get(name, 0) for name, tensor in convert(dict(own)).items()}, added


def undone(convert, shapes):
    """The way back of a conversion that only goes one way, of tensors of these shapes: each element goes where it came from."""
    own = numbered(shapes)
    target, added = moved(convert, own)

    def back(state):
        parts = [(state[name] - added.get(name, 0)).flatten() for name in target]
        places = torch.cat([target[name].flatten() for name in target]).long() - 1
        whole = torch.empty(sum(tensor.numel() for tensor in own.values()), dtype=parts[0].dtype)
        whole[places] = torch.cat(parts)
        return {name: part.reshape(shapes[name]) for name, part in zip(own, whole.split([tensor.numel() for tensor in own.values()]))}
    return back


@dataclasses.dataclass
class Rule:
    own: list        # patterns
    hf: list
    do: list         # operations, as TOML writes them; forwards
    over: str = ""
    optional: bool = False


@dataclasses.dataclass
class Sizes:
    """Expressions of parameters that operations may need."""
    heads: tuple = ()        # of a rotary embedding
    splits: tuple = ()       # lists of sizes
    reshapes: tuple = ()     # pairs: sizes after, sizes before
    swaps: bool = False      # halves may change places
    pads: tuple = ()         # pairs: rows with zeros at the end, rows without
    shifts: tuple = ()       # parameters that numbers in names may be larger by


def components(own, hf, padded):
    """Lists of names of both sides whose elements are connected, and the names of `own` that lead nowhere.  `padded`: zeros may be added."""
    names, starts = list(own), []
    for name in names:
        starts.append(int(own[name].flatten()[0]) if own[name].numel() else 0)
    parent = {}

    def root(x):
        while parent.setdefault(x, x) != x:
            x = parent[x]
        return x
    for target, tensor in hf.items():
        for number in {bisect.bisect_right(starts, int(v)) - 1 for v in tensor.flatten().tolist() if v or not padded}:
            if number < 0:
                raise ValueError(f"{target}: has elements that come from nowhere")
            parent[root(("own", names[number]))] = root(("hf", target))
    groups = {}
    for node in list(parent):
        groups.setdefault(root(node), []).append(node)
    found = [([n for s, n in g if s == "own"], [n for s, n in g if s == "hf"]) for g in groups.values()]
    used = {n for a, _ in found for n in a}
    return found, [n for n in names if n not in used]


NUMBER = re.compile(r"(shard_)?(\d+)")   # a part of a name that counts


def skeleton(name):
    return tuple(NUMBER.sub(r"\1{}", part) if NUMBER.fullmatch(part) else part for part in name.split("."))


def digits(name):
    return [int(found[2]) for part in name.split(".") if (found := NUMBER.fullmatch(part))]


def side_of(names):
    """Names of one side by skeleton: [(skeleton, place of the digits that count, digits of the first, names)]; None if they do not count."""
    by = {}
    for name in names:
        by.setdefault(skeleton(name), []).append(name)
    out = []
    for shape, same in by.items():
        counting = None
        if len(same) > 1:
            rows = [digits(n) for n in same]
            places = [p for p in range(len(rows[0])) if len({r[p] for r in rows}) > 1]
            if len(places) != 1:
                return None
            counting = places[0]
            same = sorted(same, key=lambda n: digits(n)[counting])
            if [digits(n)[counting] for n in same] != list(range(len(same))):
                return None
        out.append((shape, counting, digits(same[0]), same))
    return out


def first_seen(tensors, values):
    """Tensors in the order in which their elements stand in `values`."""
    place = {int(v): p for p, v in enumerate(values.flatten().tolist())}
    return min(place.get(int(t.flatten()[k]), len(place)) for t in tensors for k in (0, -1))


def text(value):
    return json.dumps(value)


class Operation:
    """An operation on a list of tensors, as the rules of a map define it."""

    def __init__(self, written, work):
        self.written, self.work = written, work


def per_tensor(sizes, numbers, rank):
    """What may happen to each tensor alone."""
    yield None
    for a, b in itertools.combinations(range(rank), 2):
        yield Operation('"transpose"' if (a, b) == (0, 1) else f'{{ op = "transpose", dims = [{a}, {b}] }}', lambda t, a=a, b=b: t.transpose(a, b))
    for dim in range(rank) if sizes.swaps else ():
        yield Operation(f'{{ op = "swap", dim = {dim} }}' if dim else '"swap"', lambda t, d=dim: torch.cat(t.chunk(2, d)[::-1], d))
    for after, before in sizes.pads:
        yield Operation(f'{{ op = "pad", to = {text(after)}, from = {text(before)} }}',
                        lambda t, a=after, b=before: torch.cat([t, t.new_zeros(value_of(a, numbers) - value_of(b, numbers), *t.shape[1:])]))
    for heads in sizes.heads:
        count = value_of(heads, numbers)
        for to in ("halves", "pairs"):
            yield Operation(f'{{ op = "rotary", heads = {text(heads)}, to = "{to}" }}', lambda t, c=count, to=to: rotary(t, c, to))
    for after, before in sizes.reshapes:
        yield Operation(f'{{ op = "reshape", to = {text(list(after))}, from = {text(list(before))} }}',
                        lambda t, a=after, b=before: reshaped(t, [value_of(x, numbers) for x in a], [value_of(x, numbers) for x in b]))


def reshaped(tensor, after, before):
    if len(before) != tensor.dim() or any(size not in (-1, have) for size, have in zip(before, tensor.shape)):
        raise ValueError("the way back makes another shape")
    return tensor.reshape(after)


def rotary(tensor, heads, to):
    rows = tensor.shape[0]
    if rows % (2 * heads):
        raise ValueError("rows")
    rest = tensor.shape[1:]
    cut = (heads, rows // heads // 2, 2) if to == "halves" else (heads, 2, rows // heads // 2)
    return tensor.reshape(*cut, *rest).transpose(1, 2).reshape(rows, *rest)


def value_of(expression, numbers):
    return eval(str(expression).replace("/", "//"), {"__builtins__": {}}, dict(numbers)) if not isinstance(expression, int) else expression


def joining(count, over, sizes, numbers, rank):
    """What makes one tensor of several: lists of operations, and the work on [[tensors of a pattern]]."""
    if over:
        stack = lambda lists: [torch.stack(one) for one in lists]  # noqa: E731
        if count == 1:
            yield ['"stack"'], lambda lists: stack(lists)[0]
            for dim in range(rank):
                yield [f'{{ op = "concatenate", dim = {dim} }}'], lambda lists, d=dim: torch.cat(lists[0], d)
        for dim in range(rank + 1) if count > 1 else ():
            yield ['"stack"', f'{{ op = "concatenate", dim = {dim} }}'], lambda lists, d=dim: torch.cat(stack(lists), d)
        return
    if count == 1:
        yield [], lambda lists: lists[0][0]
        return
    for dim in range(rank):
        def join(lists, d=dim):
            return torch.cat([one[0] for one in lists], d)
        yield [f'{{ op = "concatenate", dim = {dim} }}' if dim else '"concatenate"'], (join, dim, None)
        for parts in sizes.splits:
            if len(parts) == count:
                yield [f'{{ op = "concatenate", dim = {dim}, sizes = {text(list(parts))} }}'], (join, dim, parts)


def dividing(count, over, sizes, numbers, rank):
    """What makes several tensors of one: lists of operations, and the work, which gives [[tensors of a pattern]]."""
    cuts = []
    if count == 1:
        cuts.append(([], lambda t: [t]))
    else:
        for dim in range(rank):
            cuts.append(([f'{{ op = "split", dim = {dim} }}' if dim else '"split"'], lambda t, d=dim: even(t, count, d)))
            for parts in sizes.splits:
                if len(parts) == count:
                    cuts.append(([f'{{ op = "split", dim = {dim}, sizes = {text(list(parts))} }}'],
                                 lambda t, d=dim, p=parts: t.split([value_of(x, numbers) for x in p], d)))
    for written, cut in cuts:
        if not over:
            yield written, lambda t, cut=cut: [[one] for one in cut(t)]
        else:
            yield written + ['"unstack"'], lambda t, cut=cut: [list(one.unbind(0)) for one in cut(t)]


def even(tensor, count, dim):
    if tensor.shape[dim] % count:
        raise ValueError("size")
    return tensor.split(tensor.shape[dim] // count, dim)


def attempt(a, b, sizes, numbers):
    """Every list of operations that makes [[tensors]] `b` of `a`, the shortest first."""
    over_a, over_b = len(a[0]) > 1, len(b[0]) > 1
    rank_a, rank_b = a[0][0].dim(), b[0][0].dim()
    found = []
    for pre in per_tensor(sizes, numbers, rank_a):
        try:
            lists = [[pre.work(t) if pre else t for t in one] for one in a]
        except (ValueError, RuntimeError, IndexError):
            continue
        for joined, join in joining(len(a), over_a, sizes, numbers, lists[0][0].dim()):
            work, dim, parts = join if isinstance(join, tuple) else (join, None, None)
            try:
                if dim is not None:   # what cannot be undone is not taken
                    lengths = [one[0].shape[dim] for one in lists]
                    if (len(set(lengths)) > 1) != (parts is not None) or (parts and lengths != [value_of(p, numbers) for p in parts]):
                        continue
                whole = work(lists)
            except (ValueError, RuntimeError, IndexError):
                continue
            for post in per_tensor(sizes, numbers, whole.dim()):
                if pre and post and "reshape" not in post.written and not (joined or len(b) > 1 or over_b):
                    continue   # one is enough where nothing is joined or divided between
                try:
                    turned = post.work(whole) if post else whole
                except (ValueError, RuntimeError, IndexError):
                    continue
                for divided, divide in dividing(len(b), over_b, sizes, numbers, turned.dim()):
                    try:
                        got = divide(turned)
                    except (ValueError, RuntimeError, IndexError):
                        continue
                    if all(len(x) == len(y) and all(s.shape == t.shape and torch.equal(s, t) for s, t in zip(x, y)) for x, y in zip(got, b)):
                        found.append(([pre.written] if pre else []) + joined + ([post.written] if post else []) + divided)
    return sorted(found, key=lambda do: (len(do), "reshape" in "".join(do), do))


def ordered(component, own, hf):
    """The patterns of both sides in the order in which an operation joins or divides them, and their tensors."""
    a, b = (side_of(names) for names in component)
    if a is None or b is None:
        raise ValueError(f"{component}: more than one number differs")
    if len(b) == 1 and len(a) > 1:
        a.sort(key=lambda one: first_seen([own[one[3][0]]], hf[b[0][3][0]]))
    elif len(b) > 1:
        b.sort(key=lambda one: min(int(v) for v in hf[one[3][0]].flatten()[[0, -1]].tolist()))
    return a, b


def learn(models, sizes):
    """Returns the rules, and the patterns of names of `own` that the producer leaves out."""
    kinds, left = {}, {}
    for number, (own, hf, _, _) in enumerate(models):
        found, lost = components(own, hf, bool(sizes.pads))
        for name in lost:
            left.setdefault(skeleton(name), []).append(digits(name))
        for component in found:
            a, b = ordered(component, own, hf)
            key = tuple((s, c) for s, c, _, _ in a), tuple((s, c) for s, c, _, _ in b)
            kinds.setdefault(key, []).append((number, a, b))
    rules = []
    for (left_side, right_side), seen in kinds.items():
        do = None
        for number, a, b in seen:
            own, hf, numbers, _ = models[number]
            ways = attempt([[own[n] for n in one[3]] for one in a], [[hf[n] for n in one[3]] for one in b], sizes, numbers)
            do = ways if do is None else [way for way in do if way in ways]
        if not do:
            shapes = [[list(models[seen[0][0]][0][one[3][0]].shape) for one in seen[0][1]], [list(models[seen[0][0]][1][one[3][0]].shape) for one in seen[0][2]]]
            raise ValueError(f"{['.'.join(s) for s, _ in left_side]} -> {['.'.join(s) for s, _ in right_side]} {shapes}: no operations found")
        shifts = {name: [models[number][2][name] for number, _, _ in seen] for name in sizes.shifts}
        own_patterns, hf_patterns, over = patterns(left_side, right_side, seen, shifts)
        values = {models[number][3].get(name, 0) for number, _, b in seen for one in b for name in one[3]}
        if len(values) > 1:
            raise ValueError(f"{hf_patterns}: adds {values}")
        add = [f'{{ op = "add", value = {value:g} }}' for value in values if value]
        rules.append(Rule(own_patterns, hf_patterns, do[0] + add, over, {number for number, _, _ in seen} != set(range(len(models)))))
    rules.sort(key=lambda rule: not any("+" in name for name in rule.hf))   # before those for smaller numbers
    return rules, [with_captures(shape, rows) for shape, rows in left.items()]


def with_captures(shape, rows):
    names, parts, place = iter("ijklm"), [], 0
    for part in shape:
        if part.endswith("{}"):
            values = {row[place] for row in rows}
            part = part[:-2] + (f"{{{next(names)}:int}}" if len(values) > 1 else str(values.pop()))
            place += 1
        parts.append(part)
    return ".".join(parts)


def patterns(left_side, right_side, seen, shifts):
    """Names captures by the numbers that both sides share in all components of a kind; constant numbers stay.  `shifts`: by name, one of each."""
    columns, over = {}, ""

    def column(side, k, p):
        return tuple(one[side][k][2][p] for one in seen)
    captures = {}
    out = [], []
    for side, shapes in ((1, left_side), (2, right_side)):
        for k, (shape, counting) in enumerate(shapes):
            parts, place = [], 0
            for part in shape:
                if part.endswith("{}"):
                    before = part[:-2]
                    values = column(side, k, place)
                    if place == counting:
                        part, over = "{e}", "e"
                    elif shifted := next((f"{{{captures[less]}+{name}}}" for name, by in shifts.items()
                                          if (less := tuple(v - b for v, b in zip(values, by))) in captures), None):
                        part = shifted
                    elif len(set(values)) == 1:
                        part = str(values[0])
                    else:
                        known = values in captures
                        if not known and (side == 2 or k > 0):
                            raise ValueError(f"{shape}: a number that the first pattern does not have")
                        name = captures.setdefault(values, "ijklm"[len(captures)])
                        part = f"{{{name}}}" if known else f"{{{name}:int}}"
                    place, part = place + 1, before + part
                parts.append(part)
            out[side - 1].append(".".join(parts))
    return out[0], out[1], over


def merged(rules):
    """Rules that differ in one part of their names alone become one with alternatives, if both sides have the same text there."""
    rules = by_ending(rules)
    for last in (True, False):
        again = True
        while again:
            again = False
            for one in rules:
                group = alternatives(one, rules, last)
                if group:
                    place, members = group
                    texts = sorted({part_at(rule.own[0], place[0]) for rule in members})
                    capture = next(name for name in ("p", "m", "n", "w", "x") if "{" + name + "}" not in one.hf[0] and "{" + name + ":" not in one.own[0])
                    new = Rule([put(one.own[0], place[0], f"{{{capture}:{'|'.join(texts)}}}")], [put(one.hf[0], place[1], f"{{{capture}}}")], one.do, one.over, one.optional)
                    rules = [new if rule is one else rule for rule in rules if rule is one or rule not in members]
                    again = True
                    break
    return rules


def by_ending(rules):
    """Rules of several names that only end differently, such as in weight and bias, become one."""
    groups = {}
    for rule in rules:
        names = rule.own + rule.hf
        endings = {name.rpartition(".")[2] for name in names}
        alike = len(names) > 2 and len(endings) == 1 and "{" not in min(endings) and all("." in name for name in names)
        key = (tuple(n.rpartition(".")[0] for n in rule.own), tuple(n.rpartition(".")[0] for n in rule.hf), tuple(rule.do), rule.over, rule.optional) if alike else id(rule)
        groups.setdefault(key, []).append(rule)
    out = []
    for key, same in groups.items():
        if len(same) == 1:
            out += same
            continue
        endings = "|".join(sorted(rule.own[0].rpartition(".")[2] for rule in same))
        first, *others = [f"{front}.{{p}}" for front in key[0]]
        out.append(Rule([first.replace("{p}", f"{{p:{endings}}}"), *others], [f"{front}.{{p}}" for front in key[1]], same[0].do, same[0].over, same[0].optional))
    return out


def part_at(pattern, place):
    return pattern.split(".")[place]


def put(pattern, place, what):
    parts = pattern.split(".")
    parts[place] = what
    return ".".join(parts)


def alternatives(one, rules, last):
    if len(one.own) > 1 or len(one.hf) > 1:
        return None
    own, hf = one.own[0].split("."), one.hf[0].split(".")
    for a in range(len(own)):
        if (a == len(own) - 1) != last or "{" in own[a]:
            continue
        for b in range(len(hf)):
            if hf[b] != own[a]:
                continue
            members = [r for r in rules if len(r.own) == len(r.hf) == 1 and r.do == one.do and r.optional == one.optional and r.over == one.over
                       and fits(r.own[0], own, a) and fits(r.hf[0], hf, b) and part_at(r.own[0], a) == part_at(r.hf[0], b)
                       and "{" not in part_at(r.own[0], a)]
            if len(members) > 1:
                return (a, b), members
    return None


def fits(pattern, parts, place):
    other = pattern.split(".")
    return len(other) == len(parts) and all(x == y for k, (x, y) in enumerate(zip(other, parts)) if k != place)


def written(rule):
    def names(patterns):
        return text(patterns[0] if len(patterns) == 1 else patterns)
    lines = ["[[rule]]", f"from = {names(rule.own)}", f"to = {names(rule.hf)}"]
    if rule.over:
        lines.append(f'over = "{rule.over}"')
    if rule.do:
        lines.append(f"do = [{', '.join(rule.do)}]")
    if rule.optional:
        lines.append("optional = true")
    return "\n".join(lines)
