"""From samples of a class to entries: patterns of names, where they are, and shapes as expressions of the configuration."""
import functools
import inspect
import itertools
import re
import sys
from fractions import Fraction

import numpy
import transformers

from layouts import SKIPPED, begins_with, config_of, resolved, sample, small

PART = re.compile(r"(?<![^.])\d+(?![^.])")


def numbers(values):
    return {path: value for path, value in values.items() if isinstance(value, (int, float)) and not isinstance(value, bool)}


def words_of(name):
    """The texts that the code of a class compares a field with, by field."""
    try:
        source = inspect.getsource(sys.modules[getattr(transformers, name).__module__])
    except (TypeError, OSError):
        return {}
    found = {}
    for field, listed in re.findall(r"\.(\w+)(?:\[\w+\])?\s*(?:==|!=|(?:not )?in)\s*"
                                    r"([\[({][^\])}]*[\])}]|\"[^\"\n]*\"|'[^'\n]*')", source):
        found.setdefault(field, set()).update(re.findall(r"[\"']([\w\-]+)[\"']", listed))
    found.setdefault("feed_forward_proj", set()).update(["relu", "gated-gelu"])
    return found


def asked_of(model_type, name):
    """The fields that the code of a class, and of the models inside it, asks for, though their configurations need not have them."""
    found = set()
    def walk(config, module, front):
        try:
            source = inspect.getsource(sys.modules[module])
        except (TypeError, OSError, KeyError):
            source = ""
        found.update(front + field for field in re.findall(r"getattr\((?:self\.)?config, [\"'](\w+)[\"'], None\)", source))
        for inner in getattr(config, "sub_configs", {}) or {}:
            own = getattr(config, inner, None)
            if own is not None:
                walk(own, type(own).__module__.replace(".configuration_", ".modeling_"), f"{front}{inner}.")
    walk(config_of(model_type, {}, name), getattr(transformers, name).__module__, "")
    return sorted(found)


BACKBONES = ["resnet50", "resnet101", "resnet18"]   # of timm


def others(path, value, words, values):
    """Other values of a field, to be tried in turn: those of one list are alternatives of each other."""
    if isinstance(value, bool):
        return [[not value]]
    if isinstance(value, int):
        if value <= 0:
            return [[1, 2], [4]]
        if PERIOD.search(path) and value < 64:
            return [[2 * value], [max(1, value // 2)], [value + 1], [max(0, value - 1)]]
        return [[2 * value, value + 1, value // 2, value - 1], [3 * value, 4 * value, value + 2, value + 3]]
    if isinstance(value, float):
        return [[2 * value, value / 2], [3 * value]]
    if value is None:
        return [[True, 64, 4], [128, 2]]
    if isinstance(value, str) and value in BACKBONES:
        return [[other] for other in BACKBONES if other != value]
    if isinstance(value, str):
        return [[word] for word in sorted(words.get(path.split(".")[-1], ())) if word != value]
    if isinstance(value, list) and value:
        kinds = list(dict.fromkeys(map(str, value)))
        tries = [[value[::-1]]] if value[::-1] != value else []
        if all(isinstance(one, str) for one in value):
            tries += [[[kind] * len(value)] for kind in kinds if len(kinds) > 1]
            if len(kinds) == 1:
                known = sorted(set(words.get(path.split(".")[-1], ())) - set(kinds))
                tries += [[[word if at % 2 else one for at, one in enumerate(value)]]
                          for word in known]
        return tries
    return [[[0], [1]]] if value == [] else []


class Samples:
    def __init__(self, model_type, name, fields=None, deep=True):
        self.model_type, self.name, self.deep = model_type, name, deep
        self.shrunk, self.base = small(model_type, name)
        self.by_field = {}    # path: [Sample], with that field changed alone
        self.joint = []
        self.failed = []
        self.values_tried = {}
        words = words_of(name)
        for path in asked_of(model_type, name):
            self.base.values.setdefault(path, None)
        for path, value in list(self.base.values.items()):
            if SKIPPED.search(path) or path.endswith(".#") or (fields is not None and path not in fields):
                continue
            self.try_field(path, value, words)
        self.affecting = [path for path, found in self.by_field.items()
                          if any((one.file, one.module, one.tied) != (self.base.file, self.base.module, self.base.tied) for one in found)]
        self.contexts = [(self.base, self.by_field)]
        if deep:
            self.try_contexts()
            self.try_jointly()

    def numeric(self):
        """The numbers that matter, and those from which such numbers are derived."""
        base = self.base.values
        matter = set(self.affecting)
        indirect = [path for path, made in self.by_field.items() if path not in matter and
                    any(one.values.get(other) != base.get(other) for one in made for other in matter)]
        return [path for path in [*self.affecting, *indirect] if isinstance(base.get(path), (int, float)) and not isinstance(base[path], bool)]

    def try_contexts(self):
        """What a flag brings along is looked at with each number changed, too."""
        names = set(self.base.file) | set(self.base.module)
        for path in self.affecting:
            for made in self.by_field[path]:
                new = (set(made.file) | set(made.module)) - names
                if not new or isinstance(self.base.values.get(path), int) and not isinstance(self.base.values[path], bool):
                    continue
                names |= new
                by_field = {}
                matter = self.numeric()
                for number, value in self.base.values.items():
                    if not isinstance(value, int) or isinstance(value, bool) or value < 2 or number.endswith(".#") or SKIPPED.search(number):
                        continue
                    for factor in 2, 3:
                        try:
                            one = sample(self.model_type, self.name, {**self.changed(path, made.to), **self.changed_alone(number, factor * value)})
                        except Exception:
                            continue
                        if number not in matter and (one.file, one.module) == (made.file, made.module):
                            break
                        by_field.setdefault(number, []).append(one)
                        self.joint.append(one)
                self.contexts.append((made, by_field))

    def changed_alone(self, path, value):
        whole = self.changed(path, value)
        return {key: one for key, one in whole.items() if key not in self.shrunk or self.shrunk[key] != one}

    def changed(self, path, value):
        parent, _, last = path.rpartition(".")
        if last.isdigit() and isinstance(self.base.values.get(parent), list):
            listed = list(self.base.values[parent])
            listed[int(last)] = value
            return {**self.shrunk, parent: listed}
        return {**self.shrunk, path: value}

    def try_field(self, path, value, words):
        found = []
        for number, alternatives in enumerate(others(path, value, words, self.base.values)[:None if self.deep else 1]):
            # One value shows that a field has no influence.
            if number and found and not PERIOD.search(path) and isinstance(value, (int, float)) and not isinstance(value, bool) and \
                    all((one.file, one.module) == (self.base.file, self.base.module) for one in found):
                break
            for one in alternatives:
                try:
                    made = sample(self.model_type, self.name, self.changed(path, one))
                except TimeoutError:
                    raise
                except Exception:
                    continue
                if made.values.get(path) != value:
                    made.changed, made.to = path, one
                    found.append(made)
                    break
        if not found and path.endswith("_heads"):
            found = self.with_equals(path, value)
        if found:
            self.by_field[path] = found
        else:
            self.failed.append(path)

    def with_equals(self, path, value):
        """Samples with numbers of heads that have to be equal changed together."""
        front, found = path.rpartition(".")[0], []
        equal = [other for other, one in self.base.values.items()
                 if type(one) is int and one == value and one > 1 and other.endswith("_heads") and
                 other.rpartition(".")[0] == front]
        for factor in (2, 3) if len(equal) > 1 else ():
            changes = dict(self.shrunk)
            for other in equal:
                changes.update(self.changed_alone(other, factor * value))
            try:
                made = sample(self.model_type, self.name, changes)
            except Exception:
                continue
            made.changed, made.to = path, factor * value
            found.append(made)
        return found

    def try_jointly(self):
        numeric = self.numeric()[:7]
        flags = [path for path in self.affecting if isinstance(self.base.values.get(path), bool)]
        value = self.base.values
        tries = [{a: 2 * value[a], b: 3 * value[b]} for a, b in itertools.combinations(numeric, 2)]
        tries += [{path: factor * value[path] for path in numeric} for factor in (2, 3)]
        tries += [{a: not value[a], b: not value[b]} for a, b in itertools.combinations(flags[:6], 2)]
        for changes in tries:
            try:
                words = dict(self.shrunk)
                for path, one in changes.items():
                    words.update(self.changed_alone(path, one))
                self.joint.append(sample(self.model_type, self.name, words))
            except Exception:
                continue

    def all(self):
        return [self.base, *(one for found in self.by_field.values() for one in found), *self.joint]


# --- numbers as expressions

@functools.cache
def monomials(paths):
    paths = list(paths)[:7]
    out = [(("*", path),) for path in paths]
    out += [(("*", a), ("*", b)) for a, b in itertools.combinations_with_replacement(paths, 2)]
    out += [(("*", a), ("/", b)) for a, b in itertools.permutations(paths, 2)]
    out += [(("*", a), ("*", b), ("/", c)) for a, b in itertools.combinations(paths, 2) for c in paths if c not in (a, b)]
    out += [(("*", a), ("*", b), ("*", c)) for a, b, c in itertools.combinations(paths[:5], 3)]
    out += [(("*", a), ("//", b)) for a, b in itertools.permutations(paths, 2)]
    out += [(("*", a), ("//", b), ("*", c)) for a, b in itertools.permutations(paths, 2) for c in paths if c != a]
    return out


def value_of(monomial, values):
    if all(op == "*" and type(values.get(path)) is int for op, path in monomial):
        product = 1
        for _, path in monomial:
            product *= values[path]
        return Fraction(product)
    result = Fraction(1)
    for op, path in monomial:
        one = values.get(path)
        if one is None or isinstance(one, (bool, str, list)):
            return None
        one = Fraction(one).limit_denominator(1000)
        if op != "*" and one == 0:
            return None
        result = result * one if op == "*" else Fraction(result // one) if op == "//" else result / one
    return result


def text_of(terms):
    out = ""
    for coefficient, monomial in terms:
        sign, size = ("-", -coefficient) if coefficient < 0 else ("+" if out else "", coefficient)
        word = "".join(op + path if i else path for i, (op, path) in enumerate(monomial))
        if not monomial:
            word = str(size.numerator)
        else:
            word += (f"*{size.numerator}" if size.numerator != 1 and "//" in word else "") + (f"/{size.denominator}" if size.denominator != 1 else "")
            word = (f"{size.numerator}*" if size.numerator != 1 and "//" not in word else "") + word
        out += sign + word
    return out


_known = {}


def expression(points, preferred, further=()):
    key = (tuple((id(values), number) for values, number in points), tuple(preferred), tuple(further))
    if key not in _known:
        _known[key] = new_expression(points, preferred, further)
    return _known[key]


def new_expression(points, preferred, further=()):
    """points: [(values, number)]; preferred: paths that are known to matter, further: those that may.  Returns text, or None."""
    wanted = [number for _, number in points]
    if len(set(wanted)) == 1:
        return str(wanted[0])
    for path in preferred:
        unset = [(values, number) for values, number in points if values.get(path) is None]
        if unset and len(unset) < len(points):
            given = [(values, number) for values, number in points if values.get(path) is not None]
            if any(isinstance(values[path], (bool, str, list)) for values, _ in given):
                return None
            rest = [one for one in preferred if one != path]
            a = fitted(given, [path]) or fitted(given, preferred)
            b = expression(unset, rest, further)
            return f"{a}|{b}" if a and b else None
    found = fitted(points, preferred)
    if found is None and further:
        found = fitted(points, [*preferred, *(path for path in further if path not in preferred)])
    return found


def usual(ratio):
    """Returns whether a size may be that part of another: eighths, or a power of two."""
    below = ratio.denominator
    return ratio.numerator <= 64 and (below <= 8 or (below <= 64 and below & (below - 1) == 0))


def fitted(points, paths):
    unique = {}
    for values, number in points:
        unique.setdefault((*(str(values.get(path)) for path in paths), number), (values, number))
    points = list(unique.values())
    wanted = Column(number for _, number in points)
    if len({key[:-1] for key in unique}) < len(unique):
        return None   # the same numbers give different ones: something else matters
    if len(set(wanted)) == 1 and not paths:
        return str(wanted[0])
    first = points[0][0]
    moving = [path for path in paths if isinstance(first.get(path), (int, float)) and not isinstance(first[path], bool)]
    table = near_columns(tuple(moving), points)
    exact = functools.cache(lambda monomial: Column(value_of(monomial, values) for values, _ in points))
    # c * m
    target = numpy.array([float(one) for one in wanted])
    for monomial, column in table.items():
        if not column[0] or not numpy.allclose(target[0] / column[0] * column, target, rtol=1e-9, atol=1e-9):
            continue
        ratio = Fraction(wanted[0]) / exact(monomial)[0]
        if ratio and usual(ratio) and all(
                ratio * one == number for one, number in zip(exact(monomial), wanted)):
            return text_of([(ratio, monomial)])
    # c * m + d
    ones = Column([Fraction(1)] * len(wanted))
    some = [one for one in list(table)[:60] if not any(op == "//" for op, _ in one)]
    for (monomial,) in near([*some, ()], 2, {**table, (): ones.floats}, wanted, also=()):
        column = exact(monomial)
        found = solved([column, ones], wanted)
        if not found or not found[1] or (found[0] < 0 and len(set(column)) < 3):
            continue   # any two numbers lie on a line
        if found[0].denominator <= 64 and found[1].denominator == 1 and abs(found[0]) <= 64:
            return text_of([(found[0], monomial), (found[1], ())])
    names = sorted(table, key=len)
    plain = [one for one in names if all(op == "*" for op, _ in one)]
    names = [one for one in names if all(op != "//" for op, _ in one)]
    for pool, denominator in ((plain[:36], 1), (names[:36], 4)):
        for pair in near(pool, 2, table, wanted):
            found = solved(list(map(exact, pair)), wanted)
            if found and all(0 < abs(one) <= 16 and one.denominator <= denominator for one in found):
                return text_of(list(zip(found, pair)))
    for three in near(plain[:20], 3, table, wanted):
        found = solved(list(map(exact, three)), wanted)
        if found and all(0 < abs(one) <= 8 and one.denominator == 1 for one in found):
            return text_of(list(zip(found, three)))
    return None


def near_columns(paths, points):
    """Returns the values of the monomials of these fields that differ, by monomial, as floats."""
    known = {}
    for path in paths:
        column = [values.get(path) for values, _ in points]
        if all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in column):
            known[path] = numpy.array([float(Fraction(one).limit_denominator(1000)) for one in column])
    table = {}
    for monomial in monomials(paths):
        if any(path not in known or (op != "*" and not known[path].all()) for op, path in monomial):
            continue
        column = numpy.ones(len(points))
        for op, path in monomial:
            column = column * known[path] if op == "*" else column / known[path]
            if op == "//":
                column = numpy.floor(column + 1e-9)
        if (column != column[0]).any():
            table[monomial] = column
    return table


def near(pool, count, table, wanted, also=None):
    """Yields those tuples of monomials of which a sum may be what is wanted; `also` is in each of them, and not given."""
    others = [one for one in pool if one != also] if also is not None else pool
    if len(others) < (count - 1 if also is not None else count):
        return
    matrix = numpy.stack([table[one] / (numpy.abs(table[one]).max() or 1.0) for one in pool], axis=1)
    product, right, whole = matrix.T @ matrix, matrix.T @ wanted.floats, wanted.floats @ wanted.floats
    last = pool.index(also) if also is not None else None
    picked = numpy.array([(*one, last) if also is not None else one
                          for one in itertools.combinations(range(len(others)), count - 1 if also is not None else count)])
    parts, sides = product[picked[:, :, None], picked[:, None, :]], right[picked]
    singular = numpy.abs(numpy.linalg.det(parts)) < 1e-12
    parts[singular] = numpy.eye(count)
    found = numpy.linalg.solve(parts, sides[:, :, None])[:, :, 0]
    left = whole - (found * sides).sum(axis=1)
    for at in numpy.flatnonzero(~singular & (left < 1e-8)):
        yield tuple(pool[i] for i in picked[at] if i != last)


class Column(list):
    """Exact numbers, and the same as floats of about 1."""

    def __init__(self, numbers_):
        super().__init__(numbers_)
        self.floats = numpy.array([float(one) for one in self])
        self.floats /= numpy.abs(self.floats).max() or 1.0


def solved(columns, wanted):
    """Exact coefficients by which the columns give what is wanted, or None."""
    count = len(columns)
    if count > 1:
        matrix = numpy.stack([column.floats for column in columns], axis=1)
        product = matrix.T @ matrix
        if abs(numpy.linalg.det(product)) < 1e-12:
            return None
        guess = numpy.linalg.solve(product, matrix.T @ wanted.floats)
        if numpy.abs(matrix @ guess - wanted.floats).max() > 1e-6:
            return None
    rows = list(dict.fromkeys((*(column[i] for column in columns), Fraction(wanted[i])) for i in range(len(wanted))))
    if len(rows) < count:
        return None
    work = [list(row) for row in rows]
    pivot_row = 0
    for col in range(count):
        pivot = next((r for r in range(pivot_row, len(work)) if work[r][col] != 0), None)
        if pivot is None:
            return None
        work[pivot_row], work[pivot] = work[pivot], work[pivot_row]
        head = work[pivot_row]
        head[:] = [one / head[col] for one in head]
        for r in range(len(work)):
            if r != pivot_row and work[r][col] != 0:
                factor = work[r][col]
                work[r] = [one - factor * other for one, other in zip(work[r], head)]
        pivot_row += 1
    if any(row[count] != 0 for row in work[count:]):
        return None
    return [work[i][count] for i in range(count)]


# --- which layers

def filters(stacks, lists, fields):
    """stacks: [(values, count, set of indices)].  Returns [predicate] (all must hold), or None."""
    if all(len(found) == count for _, count, found in stacks):
        return []
    options = []
    moved = set(fields)
    fields = [*fields, *(path for path in stacks[0][0] if PERIOD.search(path) and path not in fields)]
    scalars = [path for path in stacks[0][0] if isinstance(stacks[0][0][path], int) and not isinstance(stacks[0][0][path], bool)
               and 0 <= stacks[0][0][path] <= 64]
    scalars.sort(key=lambda path: path not in fields)
    for path in lists:
        inside, outside, fits = set(), set(), True
        for values, count, found in stacks:
            listed = values.get(path)
            if not isinstance(listed, list) or len(listed) < count:
                fits = False
                break
            for i in range(count):
                (inside if i in found else outside).add(str(listed[i]))
        if fits and not inside & outside and inside:
            options.append(("is", path, sorted(inside)))
    for path in lists:
        if all(isinstance(values.get(path), list) and set(found) == {i for i in range(count) if i in values[path]} for values, count, found in stacks):
            options.append(("in", path))
        if all(isinstance(values.get(path), list) and set(found) == {i for i in range(count) if i not in values[path]} for values, count, found in stacks):
            options.append(("not in", path))
        if all(isinstance(values.get(path), list) and set(found) == {i for i in range(count) if i + 1 in values[path]} for values, count, found in stacks):
            options.append(("+1 in", path))
    for path in scalars:
        get = lambda values: values.get(path) if isinstance(values.get(path), int) else -1
        tests = {">=": lambda i, k, n: i >= k, "<": lambda i, k, n: i < k, "==": lambda i, k, n: i == k, "!=": lambda i, k, n: i != k,
                 ">= count-": lambda i, k, n: i >= n - k, "< count-": lambda i, k, n: i < n - k,
                 "%": lambda i, k, n: k > 0 and i % k == 0, "+1%": lambda i, k, n: k > 0 and (i + 1) % k == 0,
                 "not %": lambda i, k, n: k > 0 and i % k != 0, "not +1%": lambda i, k, n: k > 0 and (i + 1) % k != 0}
        for word, test in tests.items():
            if all({i for i in range(count) if test(i, get(values), count)} == found for values, count, found in stacks):
                options.append((word, path))
    for period, offset in itertools.product(fields, fields):
        if period != offset and all(isinstance(values.get(period), int) and isinstance(values.get(offset), int) and values[period] > 0 and
                                    {i for i in range(count) if i % values[period] == values[offset]} == found for values, count, found in stacks):
            options.append(("% ==", period, offset))
        if period != offset and all(isinstance(values.get(period), int) and isinstance(values.get(offset), int) and values[period] > 0 and
                                    {i for i in range(count) if i % values[period] != values[offset]} == found for values, count, found in stacks):
            options.append(("% !=", period, offset))
    # A field that matters, then what does not change.
    options = [one for one in options if one[1] in moved or one[0] in OF_LISTS or (one[1] in fields and "%" in one[0])]
    options.sort(key=lambda option: (option[1] not in moved, option[0] in OF_LISTS))
    if options and (options[0][1] in moved or options[0][0] not in OF_LISTS):
        return [options[0]]
    constants = {"> 0": lambda i, n: i > 0, "== 0": lambda i, n: i == 0, "< last": lambda i, n: i < n - 1, "== last": lambda i, n: i == n - 1,
                 "even": lambda i, n: i % 2 == 0, "odd": lambda i, n: i % 2 == 1}
    for word, test in constants.items():
        if all({i for i in range(count) if test(i, count)} == found for _, count, found in stacks):
            return [(word,)]
    if options:
        return [options[0]]
    return pairs_of(stacks, lists, scalars, fields)


OF_LISTS = ("is", "in", "not in", "+1 in")
PERIOD = re.compile(r"(period|offset|interval|step|freq|every)[a-z_]*$")
ATOMS = {">=": lambda i, k, n: i >= k, "<": lambda i, k, n: i < k, "%": lambda i, k, n: k > 0 and i % k == 0,
         "+1%": lambda i, k, n: k > 0 and (i + 1) % k == 0, "< count-": lambda i, k, n: i < n - k}


def pairs_of(stacks, lists, scalars, fields):
    """Two predicates that both hold, or of which not both do."""
    atoms = {}
    for path in [path for path in scalars if path in fields]:
        for word, test in ATOMS.items():
            if all(isinstance(values.get(path), int) for values, _, _ in stacks):
                atoms[(word, path)] = [{i for i in range(count) if test(i, values[path], count)} for values, count, _ in stacks]
    for path in [path for path in lists if path in fields]:
        if all(isinstance(values.get(path), list) for values, _, _ in stacks):
            atoms[("not in", path)] = [{i for i in range(count) if i not in values[path]} for values, count, _ in stacks]
            atoms[("in", path)] = [{i for i in range(count) if i in values[path]} for values, count, _ in stacks]
        listed = [(values.get(path), count) for values, count, _ in stacks]
        if all(isinstance(one, list) and len(one) >= count for one, count in listed):
            kinds = {word for one, _ in listed for word in one if isinstance(word, str)}
            for kind in sorted(kinds):
                atoms[("is", path, (kind,))] = [{i for i in range(count) if one[i] == kind}
                                                for one, count in listed]
    for a, b in itertools.combinations(atoms, 2):
        both = [x & y for x, y in zip(atoms[a], atoms[b])]
        if all(x == found for x, (_, _, found) in zip(both, stacks)):
            return [a, b]
        if all(set(range(count)) - x == found for x, (_, count, found) in zip(both, stacks)):
            return [("not", a, b)]
    return None


# --- whether an entry is there

def conditions(points, samples, index):
    """points: [(Sample, present)].  Returns [condition], or None where it cannot be said."""
    base, by_field = samples.base, samples.by_field
    present = dict((id(one), there) for one, there in points)
    if all(there for _, there in points):
        return []
    found = []
    at_base = present[id(base)]
    deciding = [path for path, made in by_field.items() if any(present[id(one)] != at_base for one in made)]
    if not at_base and len(deciding) > 1:
        # Several fields bring it along: any of them, or one that follows another.
        strict = [path for path in deciding if all(present[id(one)] != at_base for one in by_field[path])]
        deciding = strict[:1] if len(strict) == 1 else deciding
    if len(deciding) > 1:
        # One may follow another.
        for path in deciding:
            single = predicate(path, [one.values.get(path) for one, there in points if there], [one.values.get(path) for one, there in points if not there])
            if single is not None:
                return [single]
    for path in deciding:
        inside = [one.values.get(path) for one in ([base] if at_base else []) + by_field[path] if present[id(one)]]
        outside = [one.values.get(path) for one in ([] if at_base else [base]) + by_field[path] if not present[id(one)]]
        condition = predicate(path, inside, outside)
        if condition is None:
            return None
        found.append(condition)
    if not found:
        return None
    return found if all(holds_all(found, one.values) == there for one, there in points) else None


def truth(value):
    return bool(value)


def predicate(path, inside, outside):
    if not inside or not outside:
        return None
    if all(map(truth, inside)) and not any(map(truth, outside)):
        return ("true", path)
    if not any(map(truth, inside)) and all(map(truth, outside)):
        return ("false", path)
    numeric = all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in inside + outside)
    if numeric and min(inside) > max(outside):
        return (">", path, max(outside))
    if numeric and max(inside) < min(outside):
        return ("<", path, min(outside))
    if all(isinstance(one, str) for one in inside + outside) and not set(inside) & set(outside):
        if len(set(inside)) == 1:
            return ("==", path, inside[0])
        if len(set(outside)) == 1:
            return ("!=", path, outside[0])
    return None


def holds(condition, values):
    word, path, *rest = condition
    value = values.get(path)
    if word == "true":
        return truth(value)
    if word == "false":
        return not truth(value)
    if word == "==":
        return value == rest[0]
    if word == "!=":
        return value != rest[0]
    if word in ("equals", "differs"):
        return (value == values.get(rest[0])) == (word == "equals")
    if not isinstance(value, (int, float)):
        return False
    return value > rest[0] if word == ">" else value < rest[0]


def holds_all(found, values):
    return all(holds(one, values) for one in found)


# --- entries

@functools.lru_cache(maxsize=400_000)
def split(name, literal):
    """Returns the template of a name and its numbers; the numbers at positions in `literal` stay."""
    numbers_, at = [], -1

    def take(match):
        nonlocal at
        at += 1
        if at in literal:
            return match[0]
        numbers_.append(int(match[0]))
        return "{}"
    return PART.sub(take, name), tuple(numbers_)


def templates(layouts):
    """layouts: [{name: shape}].  Returns {template: per layout {numbers: shape}}, as general as shapes are alike within each layout."""
    pending = {}
    for at, layout in enumerate(layouts):
        for name in layout:
            pending.setdefault(split(name, ())[0], set()).add(name)
    result = {}
    for general, names in pending.items():
        count = general.count("{}")
        ways = [()]
        if count:
            ways += [tuple(x) for size in range(1, count + 1) for x in sorted(itertools.combinations(range(count), size))]
        for literal in ways:
            found = {}
            for at, layout in enumerate(layouts):
                for name in names:
                    if name in layout:
                        template, numbers_ = split(name, literal)
                        found.setdefault(template, [{} for _ in layouts])[at][numbers_] = layout[name]
            if literal == ways[-1] or all(regular(per) for per in found.values()):
                result.update(found)
                break
    return result


def regular(per_layout):
    for found in per_layout:
        if not found:
            continue
        if len(set(found.values())) != 1:
            return False
        width = len(next(iter(found)))
        if width > 1:
            # The numbers behind the first are the same for each first one.
            behind = {}
            for numbers_ in found:
                behind.setdefault(numbers_[0], set()).add(numbers_[1:])
            if len(set(map(frozenset, behind.values()))) != 1:
                return False
    return True


def entries_of(samples, which):
    everything = samples.all()
    index = {id(one): at for at, one in enumerate(everything)}
    found = templates([getattr(one, which) for one in everything])
    base = samples.base
    lists = [path for path, value in base.values.items() if isinstance(value, list)]
    further = samples.numeric()
    # The length of each stack, in each sample.
    stacks = {}
    for template, per in found.items():
        for place in range(template.count("{}")):
            lengths = stacks.setdefault(front_of(template, place), [0] * len(everything))
            for at, one in enumerate(per):
                for numbers_ in one:
                    lengths[at] = max(lengths[at], numbers_[place] + 1)
    counts = {}
    for front, lengths in stacks.items():
        counts[front] = count_of(samples, lengths, further, index)
        if counts[front] is None and "{}" not in front:
            # Layers of other sizes have entries of their own.
            whole = [longest(getattr(one, which), front) for one in everything]
            counts[front] = count_of(samples, whole, further, index)
            if counts[front] is not None:
                stacks[front] = whole
    out = []
    for template, per in found.items():
        entry = {"name": template}
        width = template.count("{}")
        where = None
        if width and not all(per):
            # A list of kinds of layers may say which ones, and that there are none.
            front = front_of(template, 0)
            points = [(one.values, stacks[front][at], {n[0] for n in per[at]}) for at, one in enumerate(everything) if stacks[front][at]]
            moved = moved_by(samples, lambda at: frozenset(n[0] for n in per[at]), index)
            where = filters(points, lists, moved)
            if where is not None and not any(one[0] in (*OF_LISTS, "not") for one in where) and len(where) < 2:
                where = None
        if where is None:
            conds = conditions([(one, bool(x)) for one, x in zip(everything, per)], samples, index)
            if conds is None:
                entry["maybe"] = 1
            elif conds:
                entry["if"] = conds
        ranges = []
        for place in range(width):
            front = front_of(template, place)
            if place or where is None:
                points = [(one.values, stacks[front][at], {n[place] for n in per[at]}) for at, one in enumerate(everything) if per[at]]
                moved = moved_by(samples, lambda at: frozenset(n[place] for n in per[at]) or None, index)
                ranges.append([counts[front], filters(points, lists, moved)])
            else:
                ranges.append([counts[front], where])
        if ranges:
            entry["of"] = ranges
        rank = {len(next(iter(x.values()))) for x in per if x}
        shape = None
        if len(rank) == 1:
            shape = []
            for d in range(rank.pop()):
                size = lambda at: next(iter(per[at].values()))[d] if per[at] else None
                points = [(one.values, size(at)) for at, one in enumerate(everything) if per[at]]
                moved = moved_by(samples, size, index)
                # Seen in one configuration alone, a number may be anything.
                seen_once = not per[index[id(base)]] and not any(per[index[id(c)]] and any(f) for c, f in samples.contexts)
                text = None if seen_once else expression(points, moved, further)
                # A number that a field has which was not changed may be that field.
                if text and text.isdigit() and int(text) > 4 and any(
                        value == int(text) and path not in samples.by_field for path, value in base.values.items() if type(value) is int):
                    text = None
                shape.append(text)
        entry["shape"] = shape
        out.append(entry)
    return out


def count_of(samples, lengths, further, index):
    """The expression of the length of a stack."""
    points = [(one.values, length) for one, length in zip(samples.all(), lengths) if length]
    return expression(points, moved_by(samples, lambda at: lengths[at] or None, index), further)


def longest(layout, front):
    """The length of the stack of that front in a layout."""
    numbers_ = (name[len(front):].partition(".")[0] for name in layout if name.startswith(front))
    return max((int(one) + 1 for one in numbers_ if one.isdigit()), default=0)


def front_of(template, place):
    parts = template.split("{}")
    return "{}".join(parts[:place + 1])


def moved_by(samples, get, index):
    """The fields that change what `get` returns of a sample, beside one in which it returns something."""
    found = []
    for context, by_field in samples.contexts:
        base = get(index[id(context)])
        if base is None:
            continue
        for path, made in by_field.items():
            if path not in found and any(get(index[id(one)]) not in (base, None) for one in made):
                found.append(path)
    return found


def has_no_default(path, model_type, name):
    return any(path == one or path.startswith(one + ".") for one in begins_with(model_type, name))


def defaults_of(samples, used):
    """What fields are if the configuration does not say: a constant, or an expression."""
    plain = resolved(config_of(samples.model_type, {}, samples.name))
    out = {}
    for path in sorted(used):
        if has_no_default(path, samples.model_type, samples.name):
            out[path] = {"?": 1}
            continue
        moved, points = [], [(samples.base.values, samples.base.values.get(path))]
        for field, made in samples.by_field.items():
            if field == path or field.startswith(path + ".") or path.startswith(field + "."):
                continue
            for one in made:
                points.append((one.values, one.values.get(path)))
            if any(one.values.get(path) != samples.base.values.get(path) for one in made):
                moved.append(field)
        value = plain.get(path)
        if moved and isinstance(samples.base.values.get(path), int) and path not in samples.shrunk and \
                all(isinstance(number, int) for _, number in points):
            text = expression(points, moved)
            out[path] = {"=": text} if text else {"?": 1}
        elif moved:
            out[path] = {"?": 1}
        else:
            out[path] = value
    return out


def used_in(entries):
    found = set()

    def of_text(text):
        if text:
            found.update(word for word in re.findall(r"[A-Za-z_][\w.#]*", text))
    for entry in entries:
        for condition in entry.get("if", ()):
            found.update(condition[1:] if condition[0] in ("equals", "differs") else condition[1:2])
        for count, where in entry.get("of", ()):
            of_text(count)
            for one in where or ():
                found.update(one[1:2] if one[0] == "is" else [y for x in one[1:] for y in ([x] if isinstance(x, str) else x[1:2])])
        for dim in entry["shape"] or ():
            of_text(dim)
    return found


# --- what entries say of a configuration

TERM = re.compile(r"([+-]?)([^+-]+)")


def evaluated(text, values):
    """Returns the number, or None where a field is not known."""
    first, bar, second = text.partition("|")
    if bar:
        path = re.search(r"[A-Za-z_][\w.]*", first)[0]
        return evaluated(first if values.get(path) is not None else second, values)
    total = Fraction(0)
    for sign, term in TERM.findall(text):
        product, op = Fraction(1), "*"
        for word in re.split(r"(//|[*/])", term):
            if word in ("*", "/", "//"):
                op = word
                continue
            one = int(word) if word.isdigit() else values.get(word)
            if not isinstance(one, (int, float)) or isinstance(one, bool):
                return None
            one = Fraction(one).limit_denominator(1000)
            if op != "*" and not one:
                return None
            product = product * one if op == "*" else Fraction(product // one) if op == "//" else product / one
        total += -product if sign == "-" else product
    return int(total) if total.denominator == 1 else int(total // 1)


def chosen(where, count, values):
    """The set of indices, or None where it is not known."""
    if where is None:
        return None
    result = set(range(count))
    for one in where:
        found = chosen_by(one, count, values)
        if found is None:
            return None
        result &= found
    return result


def chosen_by(one, count, values):
    word, *rest = one
    whole = set(range(count))
    if word == "not":
        found = chosen(rest, count, values)
        return None if found is None else whole - found
    constant = {"> 0": lambda i: i > 0, "== 0": lambda i: i == 0, "< last": lambda i: i < count - 1, "== last": lambda i: i == count - 1,
                "even": lambda i: i % 2 == 0, "odd": lambda i: i % 2 == 1}
    if not rest:
        return {i for i in whole if constant[word](i)}
    value = values.get(rest[0])
    if word == "is":
        if not isinstance(value, list) or len(value) < count:
            return None
        return {i for i in whole if str(value[i]) in rest[1]}
    if word in ("in", "not in", "+1 in"):
        if not isinstance(value, list):
            return None
        return {i for i in whole if (i + (word == "+1 in") in value) == (word != "not in")}
    if not isinstance(value, int):
        return None
    if word in ("% ==", "% !="):
        other = values.get(rest[1])
        if not isinstance(other, int) or value <= 0:
            return None
        return {i for i in whole if (i % value == other) == (word == "% ==")}
    if "%" in word and value <= 0:
        return None
    tests = {">=": lambda i: i >= value, "<": lambda i: i < value, "==": lambda i: i == value, "!=": lambda i: i != value,
             ">= count-": lambda i: i >= count - value, "< count-": lambda i: i < count - value, "%": lambda i: i % value == 0,
             "+1%": lambda i: (i + 1) % value == 0, "not %": lambda i: i % value != 0, "not +1%": lambda i: (i + 1) % value != 0}
    return {i for i in whole if tests[word](i)}


def expected(entries, values):
    """Yields (name, shape, whether it must be there, entry).  Sizes that are not known are None."""
    for entry in entries:
        if not holds_all(entry.get("if", ()), values):
            continue
        must = "maybe" not in entry
        shape = None if entry["shape"] is None else tuple(None if text is None else evaluated(text, values) for text in entry["shape"])
        tuples = [()]
        for count, where in entry.get("of", ()):
            number = evaluated(count, values) if count else None
            if number is None:
                tuples, must = [], False
                break
            picked = chosen(where, number, values)
            if picked is None:
                picked, must = set(range(number)), False
            tuples = [(*one, i) for one in tuples for i in sorted(picked)]
        for one in tuples:
            yield entry["name"].format(*one), shape, must, entry


def mend(entries, samples, which):
    """Withdraws what a sample contradicts.  Returns how many entries were touched."""
    touched = set()
    for one in samples.all():
        actual = dict(getattr(one, which))
        for name, shape, must, entry in list(expected(entries, one.values)):
            if name not in actual:
                if must:
                    entry["maybe"] = 1
                    touched.add(entry["name"])
                continue
            real = actual.pop(name)
            if shape is None:
                continue
            if len(shape) != len(real):
                entry["shape"] = None
                touched.add(entry["name"])
                continue
            for d, (a, b) in enumerate(zip(shape, real)):
                if a is not None and a != b:
                    entry["shape"][d] = None
                    touched.add(entry["name"])
        if actual:
            table = {entry["name"]: entry for entry in entries}
            for name in actual:
                for size in range(4):
                    hit = None
                    for literal in itertools.combinations(range(3), size):
                        template = split(name, literal)[0]
                        if template in table:
                            hit = table[template]
                            break
                    if hit:
                        break
                if hit is None:
                    continue
                hit.pop("if", None)
                hit["maybe"] = 1
                touched.add(hit["name"])
                for of in hit.get("of", ()):
                    pass
                if name not in {n for n, *_ in expected([hit], one.values)}:
                    hit["of"] = [[None, None] for _ in hit["of"]] if "of" in hit else []
    return len(touched)
