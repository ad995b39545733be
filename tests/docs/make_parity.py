#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the tables of docs/parity.md from docs/parity.txt, whose head says how it is written.

    make_parity.py [--update]     without --update: fails where the page is not what the table gives

A table stands in the page between `<!-- rows: NAME -->` and `<!-- end -->`; the counts between `<!-- counts -->` and `<!-- end -->`.
Fails as well where a row has neither a test nor a reason, names a test that is not in the tree, or names an option without its test, which
tests/left_out/options.py holds against a library that ignores the option; and where an option of the wrapper, of a call or of a strategy has no row.
"""
import fnmatch
import os
import re
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
TABLE = "docs/parity.txt"
PAGE = "docs/parity.md"
# Headers whose options have a row each.  Those of fully_shard.h are in from_python.md, those of checkpoints in checkpoints.md.
WITH_ROWS = ("options.h", "fully_sharded.h", "state_dict.h", "strategy.h", "fairscale_options.h")
MARKED = re.compile(r"(<!-- (rows: (\w+)|counts) -->\n).*?(<!-- end -->)", re.DOTALL)
DEFAULTS = "Defaults.are_those_of_the_documentation"
OPTION = re.compile(r"`(\w+(?:Options|Config|Precision|Policy|Offload)::\w+)`")

sys.path.append(os.path.join(ROOT, "tests", "left_out"))
sys.path.append(os.path.join(ROOT, "tests", "parity"))
os.environ.pop("FSDP_TEST_SAMPLE", None)
import cases  # noqa: E402
import options as left_out  # noqa: E402


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


class Tests:
    """The tests of the tree, by the ways in which a row names them."""

    def __init__(self):
        self.files = {}   # "Suite.case" -> files below tests/
        for folder, _, names in os.walk(os.path.join(ROOT, "tests")):
            for name in names:
                if not name.endswith("_test.cpp"):
                    continue
                path = os.path.relpath(os.path.join(folder, name), os.path.join(ROOT, "tests"))
                for found in re.findall(r"^(?:TYPED_)?TEST(?:_[FP])?\((\w+), *(\w+)\)", read(f"tests/{path}"), re.MULTILINE):
                    self.files.setdefault(".".join(found), []).append(path)
        self.ctest = [line.split()[0] for line in read("tests/tiers.txt").splitlines() if line and not line.startswith(("#", "budget"))]
        models = re.findall(r'^    "(\w+)": Model\(', read("tests/parity/models.py"), re.MULTILINE) + list(cases.PUBLIC)
        self.words = set(models)
        for model in models:
            for world in cases.WORLDS:
                for name in cases.cases(model, world):
                    self.words.update(name.split("__"))

    def of_suite(self, suite):
        return [case for case in self.files if case.split(".")[0] == suite]

    def of_option(self, option):
        """Returns the tests that options.py takes for those of an option."""
        struct, member = option.split("::")
        others = {name for structs in left_out.STRUCTS.values() for name in structs}
        return {case for case in self.files if case.split(".")[1] == member and (
            case.split(".")[0] == struct or (struct in left_out.STRUCTS["options.h"] and case.split(".")[0] not in others))}

    def is_parity(self, word):
        of_parity = [case for case, paths in self.files.items() if "parity/parity_test.cpp" in paths]
        return word in of_parity or any(case.startswith(word + ".") for case in of_parity) or any(
            known == word or known.startswith(word + "_") for known in self.words)

    def shown(self, name, problem):
        """Returns how the page names a test, or reports that there is none."""
        if name.startswith("parity: "):
            words = name.removeprefix("parity: ").split(", ")
            for word in words:
                if not self.is_parity(word):
                    problem(f"no case of parity is called {word}")
            return "parity: " + ", ".join(f"`{word}`" for word in words)
        path, _, function = name.partition(": ")
        if "/" in path:
            if not os.path.isfile(os.path.join(ROOT, "tests", path)):
                problem(f"there is no tests/{path}")
            elif function and not re.search(rf"^def {function}\(", read(f"tests/{path}"), re.MULTILINE):
                problem(f"tests/{path} has no {function}")
            return name
        if name in self.files or re.fullmatch(r"[A-Z]\w+", name):
            cases_here = [name] if name in self.files else self.of_suite(name)
            places = {place for case in cases_here for place in self.files[case]}
            if len(places) != 1:
                problem(f"{name} is in {len(places)} files")
            return name
        if not any(fnmatch.fnmatchcase(name, row) for row in self.ctest):
            problem(f"no test is called {name}")
        return name


def shown_tests(cell, tests, problem, implied):
    """Returns the last cell of a row, without the tests that the head of the page names for all rows."""
    shown = []
    reasons = []
    for name in cell.split("; ") if cell else []:
        if reasons or name.startswith("none: "):
            reasons.append(name.removeprefix("none: "))
        else:
            shown.append((name, tests.shown(name, problem)))
    if not shown and not reasons:
        problem("neither a test nor a reason")
    shown = [text for name, text in shown if name not in implied]
    reason = "; ".join(reasons)
    return "; ".join(shown) + (f" ({reason})" if shown and reason else reason)


def made(text, tests, problems):
    """Returns the tables by name, the numbers of items and of rows with a reason alone, and the options in them."""
    tables = {}
    items = rows = untested = 0
    named = set()
    known = {"::".join(option) for option in left_out.options()} | set(left_out.EXCEPTIONS)
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        head = re.fullmatch(r"\[(\w+)\] (.+)", line)
        if head:
            columns = head[2].split(" | ")
            rows_of = tables[head[1]] = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
            continue

        def problem(what, place=f"{TABLE}:{number}"):
            problems.append(f"{place}: {what}")
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) != 3 or not tables:
            problem("expected three cells, in a table")
            continue
        implied = {DEFAULTS} if "default" in cells[0] else set()
        for option in OPTION.findall(line):
            named.add(option)
            if option in known and option not in left_out.EXCEPTIONS:
                implied |= tests.of_option(option)
            if option not in known:
                problem(f"tests/left_out/options.py does not know {option}")
            elif option not in left_out.EXCEPTIONS and not tests.of_option(option) & set(cells[2].split("; ")):
                problem(f"names {option}, but not its test")
        items += len(cells[0].split("; "))
        rows += 1
        untested += cells[2].startswith("none: ")
        rows_of.append(f"| {cells[0]} | {cells[1]} | {shown_tests(cells[2], tests, problem, implied)} |".replace("|  |", "| |"))
    for header in WITH_ROWS:
        wanted = {f"{struct}::{member}" for struct, member in left_out.options() if struct in left_out.STRUCTS[header]}
        problems.extend(f"{TABLE}: no row names {option}" for option in sorted(wanted - named))
    return tables, f"{items} items in {rows} rows; {untested} rows have no test, but the reason.\n"


def main():
    problems = []
    tables, counts = made(read(TABLE), Tests(), problems)
    page = read(PAGE)
    left = set(tables)

    def replaced(found):
        if found[2] == "counts":
            return found[1] + counts + found[4]
        if found[3] not in tables:
            problems.append(f"{PAGE}: {TABLE} has no table {found[3]}")
            return found[0]
        left.discard(found[3])
        return found[1] + "\n".join(["", *tables[found[3]], "", found[4]])

    wanted = MARKED.sub(replaced, page)
    problems.extend(f"{PAGE}: no place for the table {name}" for name in sorted(left))
    if "--update" in sys.argv[1:]:
        with open(os.path.join(ROOT, PAGE), "w", encoding="utf-8") as file:
            file.write(wanted)
    elif wanted != page:
        problems.append(f"{PAGE} is not what {TABLE} gives: run tests/docs/make_parity.py --update")
    for what in problems:
        print(what, file=sys.stderr)
    print(counts, end="")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
