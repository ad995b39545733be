#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares docs/tests.md with the tree: every unit has a test that refers to it, and files that pages and comments name are there.

    check_units.py [--update]     with --update: drops units that are wrong and writes those that are missing
    check_units.py UNIT...        says how the test of a unit reaches it

A unit is a .h, a .cpp or the pair of formats/, tools/ or libfsdp/, without libfsdp/include/. It needs no row if tests/<unit>_test.cpp exists. The row of
a test otherwise lists it. A test refers to a unit if it includes the unit's header or, for a verb of the tool, holds the verb
as a string. A unit is reached through another if that one includes its header, or if it is a .cpp without a header and
includes the other's, of the same library. A test may be that of a unit that it refers to or has the name of, and of what is
reached through a unit whose test it is.
"""
import os
import re
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
TABLE = "docs/tests.md"
# Of the build alone; tests/packaging runs what no_loading and old_glibc are linked into, tests/python the module.
LEFT_OUT = {"libfsdp/internal/pch", "tools/packaging/no_loading", "tools/packaging/old_glibc", "tools/python/native/module",
            "tools/python/native/streams"}
ROW = re.compile(r"^\| `([^`]+)` \| (`[^`|]+`(?:, `[^`|]+`)*) \|$")
HEAD = "| test | units |\n|---|---|\n"


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def files(top, ending):
    for folder, _, names in os.walk(os.path.join(ROOT, top)):
        for name in names:
            if name.endswith(ending):
                yield os.path.relpath(os.path.join(folder, name), ROOT)


def includes(text):
    return [name.removesuffix(".h") for name in re.findall(r'^#include "([^"]+\.h)"', text, re.MULTILINE)]


class Tree:
    def __init__(self):
        self.sources = {}
        for top in ("formats", "tools", "libfsdp"):
            for path in files(top, (".h", ".cpp")):
                self.sources.setdefault(os.path.splitext(path)[0].removeprefix("libfsdp/include/"), []).append(path)
        for unit in LEFT_OUT:
            self.sources.pop(unit, None)
        self.included = {unit: {name for path in paths for name in includes(read(path))} - {unit}
                         for unit, paths in self.sources.items()}
        self.tests = {path: read(path) for path in sorted(files("tests", (".cpp", ".h", ".py")))}
        self.includes_of_test = {path: set(includes(text)) for path, text in self.tests.items()}
        verbs = re.findall(r"make_(\w+)\(", read("tools/base/verbs.h"))
        self.verbs = {unit: verb for unit in self.sources if unit.startswith("tools/") and (verb := os.path.basename(unit)) in verbs}

    def own_test(self, unit):
        path = f"tests/{unit}_test.cpp"
        return path if path in self.tests else None

    def refers(self, test, unit):
        if unit in self.includes_of_test[test]:
            return True
        return unit in self.verbs and re.search(rf"[\"']{self.verbs[unit]}[\"']", self.tests[test]) is not None

    def implements(self, unit, other):
        """True if the unit is a .cpp alone that includes the other's header."""
        return (self.sources[unit] == [unit + ".cpp"] and other in self.included[unit] and
                unit.split("/")[0] == other.split("/")[0])

    def reached(self, unit, other):
        return other in self.sources and (unit in self.included[other] or self.implements(unit, other))

    def test_of(self, unit, rows):
        return self.own_test(unit) or rows.get(unit)

    def ways(self, rows):
        """How the test of each unit reaches it: the unit in between, or None where it refers to the unit itself."""
        found = {unit: None for unit in self.sources
                 if self.own_test(unit) or (rows.get(unit) in self.tests and self.refers(rows[unit], unit))}
        todo = list(found)
        for other in todo:
            for unit in sorted(self.sources):
                if unit not in found and self.reached(unit, other) and rows.get(unit) == self.test_of(other, rows):
                    found[unit] = other
                    todo.append(unit)
        return found

    def wrong(self, unit, rows, ways):
        """The reason why the unit does not belong into its row, or None."""
        if unit not in self.sources:
            return "is not a unit of the tree"
        if self.own_test(unit):
            return "has a test of its own: it needs no row"
        if rows[unit] not in self.tests:
            return f"is in the row of {rows[unit]}, which is not a test"
        return None if unit in ways else f"is not reached by {rows[unit]}"

    def complete(self, rows):
        """Adds a row for each unit that has none: the nearest test."""
        def nearness(unit, path):
            return len(os.path.commonpath([os.path.dirname(path.removeprefix("tests/")), os.path.dirname(unit)]))

        missing = [unit for unit in sorted(self.sources) if unit not in rows and not self.own_test(unit)]
        for unit in missing:
            direct = [test for test in self.tests if test.endswith("_test.cpp") and self.refers(test, unit)]
            direct = direct or [test for test in self.tests if not test.endswith(".h") and self.refers(test, unit)]
            word = self.verbs.get(unit, os.path.basename(unit))
            if direct:
                rows[unit] = max(direct, key=lambda test: (nearness(unit, test), self.tests[test].count(word), test))
        while True:
            found = {}
            for unit in missing:
                ways = [other for other in sorted(self.sources) if unit not in rows and other != unit and
                        self.reached(unit, other) and self.test_of(other, rows)]
                if ways:
                    other = max(ways, key=lambda way: (
                        nearness(unit, way), self.implements(unit, way) and len(os.path.commonprefix([unit, way])),
                        self.own_test(way) is not None))
                    found[unit] = self.test_of(other, rows)
            if not found:
                return
            rows.update(found)


def rows_of(text):
    """Returns the test of each unit in the table, and what is wrong with the table itself."""
    rows, problems = {}, []
    before, found, table = text.partition(HEAD)
    if not found or "\n| " in before:
        problems.append(f"{TABLE} has no table of {HEAD.splitlines()[0]}, or another one")
    for line in table.splitlines():
        match = ROW.match(line)
        if not match:
            problems.append(f"{TABLE}: not a row: {line}")
            continue
        for unit in match[2].strip("`").split("`, `"):
            if unit in rows:
                problems.append(f"{unit} is in the table twice")
            rows[unit] = match[1]
    return rows, problems


def table_of(rows):
    tests = {}
    for unit, test in sorted(rows.items()):
        tests.setdefault(test, []).append(unit)
    return HEAD + "".join(f"| `{test}` | {', '.join(f'`{unit}`' for unit in units)} |\n" for test, units in sorted(tests.items()))


def wrong_units(tree, rows):
    ways = tree.ways(rows)
    return {unit: why for unit in rows if (why := tree.wrong(unit, rows, ways))}


def missing_files():
    """The source files that pages, in backticks, and comments, in brackets, name and the tree does not have."""
    known = set()
    for top in ("formats", "tools", "libfsdp", "samples", "tests", "docs"):
        for path in files(top, (".h", ".cpp")):
            parts = path.split("/")
            known.update("/".join(parts[at:]) for at in range(len(parts)))
    for top, ending, form in (("docs", ".md", r"`([\w./-]+\.(?:cpp|h))`"), ("formats", (".h", ".cpp"), r"\(([\w/]+\.(?:cpp|h))\)"),
                              ("libfsdp", (".h", ".cpp"), r"\(([\w/]+\.(?:cpp|h))\)"), ("tools", (".h", ".cpp"), r"\(([\w/]+\.(?:cpp|h))\)")):
        for path in sorted(files(top, ending)):
            if path not in ("docs/CHANGELOG.md", "docs/guide.md") and not path.startswith("docs/results/"):
                yield from (f"{path} names {name}, which is not in the tree"
                            for name in re.findall(form, read(path)) if name.lstrip("./") not in known)


def main():
    tree = Tree()
    text = read(TABLE)
    rows, problems = rows_of(text)
    words = sys.argv[1:]
    if "--update" in words:
        for unit in wrong_units(tree, rows):
            del rows[unit]
        tree.complete(rows)
        with open(os.path.join(ROOT, TABLE), "w", encoding="utf-8") as file:
            file.write(text.partition(HEAD)[0] + table_of(rows))
        rows, problems = rows_of(read(TABLE))
    elif words:
        ways = tree.ways(rows)
        for unit in words:
            chain = [unit]
            while ways.get(chain[-1]):
                chain.append(ways[chain[-1]])
            print(" <- ".join([*chain, tree.test_of(unit, rows)]) if unit in ways else f"{unit}: no test")
        return any(unit not in ways for unit in words)
    elif not problems and text != text.partition(HEAD)[0] + table_of(rows):
        problems.append(f"{TABLE} is not in order: --update sorts it")
    problems += [f"{unit} {why}" for unit, why in wrong_units(tree, rows).items()]
    problems += [f"{unit} has neither tests/{unit}_test.cpp nor a place in {TABLE}"
                 for unit in sorted(tree.sources) if unit not in rows and not tree.own_test(unit)]
    problems += missing_files()
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{len(tree.sources)} units, {sum(tree.own_test(unit) is not None for unit in tree.sources)} with a test of their own, "
          f"{len(rows)} in {TABLE}")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
