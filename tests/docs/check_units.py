#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares docs/tests.md with the tree: every unit has a test that refers to it.

    check_units.py [--update]     with --update: drops rows that are wrong and writes those that are missing

A unit is a .h, a .cpp or the pair of formats/, tools/ or libfsdp/. It needs no row if tests/<unit>_test.cpp exists. Its row
otherwise names a test and may name a unit after "through". A test refers to a unit if it includes the unit's header or, for
a verb of the tool, holds the verb as a string. A unit is reached through another if that one includes its header, or if it
is a .cpp without a header and includes the other's, of the same library. A unit behind "through" has its own test, or a row with that test.
"""
import os
import re
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
TABLE = "docs/tests.md"
# Of the build alone; tests/packaging runs what no_plugins is linked into.
LEFT_OUT = {"libfsdp/internal/pch", "tools/packaging/no_plugins"}
ROW = re.compile(r"^\| `([^`]+)` \| `([^`]+)` \| (?:`([^`]+)` )?\|$")


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
                self.sources.setdefault(os.path.splitext(path)[0], []).append(path)
        for unit in LEFT_OUT:
            self.sources.pop(unit, None)
        self.included = {unit: {name for path in paths for name in includes(read(path))} - {unit}
                         for unit, paths in self.sources.items()}
        self.tests = {path: read(path) for path in sorted(files("tests", (".cpp", ".h", ".py")))}
        self.includes_of_test = {path: set(includes(text)) for path, text in self.tests.items()}
        verbs = re.findall(r"make_(\w+)\(", read("tools/verbs.h"))
        self.verbs = {f"tools/{verb}": verb for verb in verbs}

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

    def tests_of(self, unit, rows):
        """The tests that a row through the unit may name."""
        own = self.own_test(unit)
        return {own} if own else {rows[unit][0]} if unit in rows else set()

    def wrong(self, unit, rows):
        """The reason why the unit's row does not hold, or None."""
        test, through = rows[unit]
        if unit not in self.sources:
            return "is not a unit of the tree"
        if self.own_test(unit):
            return "has a test of its own: the row is not needed"
        if test not in self.tests:
            return f"names {test}, which is not a test"
        if through is None:
            return None if self.refers(test, unit) else f"names {test}, which does not refer to it"
        if not self.reached(unit, through):
            return f"is not reached through {through}"
        seen = {unit}
        while through is not None:
            if through in seen:
                return "is reached through itself"
            seen.add(through)
            if test not in self.tests_of(through, rows):
                return f"is reached through {through}, whose test is not {test}"
            through = rows[through][1] if through in rows else None
        return None

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
                rows[unit] = (max(direct, key=lambda test: (nearness(unit, test), self.tests[test].count(word), test)), None)
        while True:
            found = {}
            for unit in missing:
                ways = [other for other in sorted(self.sources) if unit not in rows and other != unit and
                        self.reached(unit, other) and self.tests_of(other, rows)]
                if ways:
                    other = max(ways, key=lambda way: (
                        nearness(unit, way), self.implements(unit, way) and len(os.path.commonprefix([unit, way])),
                        self.own_test(way) is not None))
                    found[unit] = (next(iter(self.tests_of(other, rows))), other)
            if not found:
                return
            rows.update(found)


def main():
    tree = Tree()
    text = read(TABLE)
    rows = {match[1]: (match[2], match[3]) for match in map(ROW.match, text.splitlines()) if match}
    problems = {unit: tree.wrong(unit, rows) for unit in rows}
    problems = {unit: why for unit, why in problems.items() if why}
    if "--update" in sys.argv[1:]:
        for unit in problems:
            del rows[unit]
        tree.complete(rows)
        lines = [f"| `{unit}` | `{test}` | {f'`{through}` ' if through else ''}|" for unit, (test, through) in sorted(rows.items())]
        head = text[:text.index("|---|---|---|\n") + len("|---|---|---|\n")]
        with open(os.path.join(ROOT, TABLE), "w", encoding="utf-8") as file:
            file.write(head + "\n".join(lines) + "\n")
        problems = {unit: why for unit in rows if (why := tree.wrong(unit, rows))}
    for unit in sorted(tree.sources):
        if unit not in rows and not tree.own_test(unit):
            problems[unit] = f"has neither tests/{unit}_test.cpp nor a row in {TABLE}"
    for unit, why in problems.items():
        print(f"{unit} {why}", file=sys.stderr)
    print(f"{len(tree.sources)} units, {sum(tree.own_test(unit) is not None for unit in tree.sources)} with a test of their own, "
          f"{len(rows)} in {TABLE}")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
