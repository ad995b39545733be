#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of a tier by CTest.

    run_tiers.py run TIER --build BUILD [--jobs N] [--resume | --stop]     TIER: quick, default or all
    run_tiers.py programs TIER                                     prints the programs of unit tests that it runs
    run_tiers.py check                                             compares the sums of the tiers with their budgets
    run_tiers.py update --build BUILD                              writes the seconds of the last runs into the table

tests/tiers.txt gives each test its tier and its seconds ("-": not measured yet). BUILD/tests-TIER.txt records each test that ended: with --resume those
that passed, or were skipped, are not run again; --stop ends at the first that fails. A line is printed for each family of tests (the name up to the first dot, or
the library of a unit test) when its last test ends; the last line counts: "N passed, N failed". Exit: 0 all passed, 1 some failed.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import sys

TABLE = pathlib.Path(__file__).resolve().parent.parent / "tiers.txt"
TIERS = ("quick", "default", "all")
LINES_SHOWN = 40  # of a test that failed, at the end
ENDED = re.compile(r"^ *\d+/\d+ Test +#\d+: (.+?) \.{3,} *(Passed|[A-Za-z ]*\*\*\*.*?) +(\d+\.\d+) sec *$")

# seconds: of the whole test; sample: of what the default tier runs of it, if that is less.  None: not measured yet.
Row = collections.namedtuple("Row", "name tier seconds sample samples")
ASSUMED = 60  # seconds of a test that was not measured


def seconds_of(word):
    return None if word == "-" else float(word)


class Table:
    def __init__(self, text):
        self.rows, self.budgets = {}, {}
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split("#")[0].split()
            if not words:
                continue
            if words[0] == "budget" and len(words) == 3 and words[1] in TIERS:
                self.budgets[words[1]] = float(words[2])
            elif len(words) in (3, 4) and words[1] in TIERS and words[0] not in self.rows:
                sample = words[3] if len(words) == 4 else "-"
                self.rows[words[0]] = Row(words[0], words[1], seconds_of(words[2]), seconds_of(sample), len(words) == 4)
            else:
                raise SystemExit(f"{TABLE.name}:{number}: expected a test that has no other row, one of {', '.join(TIERS)}, "
                                 f"and its seconds, found '{line}'")

    def row_of(self, test, program):
        """The row of a test, of its program, or of the family whose name ends in a star."""
        for name in (test, program):
            if name in self.rows:
                return self.rows[name]
        for name, row in self.rows.items():
            if name.endswith("*") and test.startswith(name[:-1]):
                return row
        raise SystemExit(f"{TABLE.name}: no row for {test}")

    def rows_of(self, tier):
        return [row for row in self.rows.values() if TIERS.index(row.tier) <= TIERS.index(tier)]

    def seconds(self, tier):
        """What the tests of the tier take, one after the other."""
        measured = [row.sample if tier == "default" and row.samples else row.seconds for row in self.rows_of(tier)]
        return sum(ASSUMED if seconds is None else seconds for seconds in measured)


class Test:
    def __init__(self, number, entry, table):
        self.number, self.name = number, entry["name"]
        program = os.path.basename(entry.get("command", [""])[0])
        self.row = table.row_of(self.name.removesuffix("_NOT_BUILT"), program)
        if self.row.name == program:
            self.family = "libfsdp" if program.startswith("tests_libfsdp") else program.removeprefix("tests_").split("_")[0]
        else:
            self.family = self.name.split(".")[0]


def read_tests(build, table):
    shown = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], check=True, capture_output=True, text=True)
    return [Test(number, entry, table) for number, entry in enumerate(json.loads(shown.stdout)["tests"], 1)]


def write_costs(build, tests):
    """Has CTest begin with the longest tests, so that no core waits for them at the end."""
    cases = collections.Counter(test.row.name for test in tests)
    folder = pathlib.Path(build, "Testing", "Temporary")
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{test.name} 1 {(test.row.seconds or ASSUMED) / cases[test.row.name]:.4f}" for test in tests]
    (folder / "CTestCostData.txt").write_text("\n".join([*lines, "---", ""]))


class Report:
    """What ended, as it ends."""

    def __init__(self, record, tests, known):
        self.record, self.status, self.seconds = record, {name: status for name, (status, _) in known.items()}, collections.Counter()
        self.left = collections.Counter(test.family for test in tests if test.name not in known)
        self.family = {test.name: test.family for test in tests}
        self.count = collections.Counter(self.family.values())
        for name, (_, seconds) in known.items():
            self.seconds[self.family[name]] += seconds
        self.output = collections.defaultdict(list)
        self.failing = None

    def line(self, line):
        ended = ENDED.match(line)
        if ended is None:
            if re.match(r"^ +Start +\d+: ", line):
                self.failing = None
            elif self.failing is not None:
                self.output[self.failing].append(line)
                print(line, flush=True)
            return
        name, verdict, seconds = ended[1], ended[2], float(ended[3])
        status = "passed" if verdict == "Passed" else "skipped" if verdict.startswith("***Skipped") else "failed"
        print(f"{status} {seconds:.1f} s {name}" + (f" ({verdict.strip('*')})" if status == "failed" else ""), flush=True)
        self.failing = None if status == "passed" else name
        self.status[name] = status
        print(status, f"{seconds:.2f}", name, file=self.record, flush=True)
        family = self.family.get(name)
        if family is not None:
            self.seconds[family] += seconds
            self.left[family] -= 1
            if self.left[family] == 0:
                print(f"== {self.seconds[family] / 60:.1f} min of processes: {family}, {self.count[family]} tests", flush=True)


def read_record(path):
    """Status and seconds of each test whose last run did not fail."""
    known = {}
    if path.exists():
        for line in path.read_text().splitlines():
            status, seconds, name = line.split(" ", 2)
            known[name] = status, float(seconds)
    return {name: ended for name, ended in known.items() if ended[0] != "failed"}


def run(options, table):
    every = read_tests(options.build, table)
    chosen = [test for test in every if TIERS.index(test.row.tier) <= TIERS.index(options.tier)]
    path = pathlib.Path(options.build, f"tests-{options.tier}.txt")
    names = {test.name for test in chosen}
    known = {name: ended for name, ended in (read_record(path) if options.resume else {}).items() if name in names}
    todo = [test for test in chosen if test.name not in known]
    if known:
        print(f"== {len(known)} of {len(chosen)} tests ended before, and are not run again", flush=True)
    write_costs(options.build, every)
    environment = {**os.environ, "FSDP_TEST_SAMPLE": "1"} if options.tier != "all" else dict(os.environ)
    with open(path, "a" if options.resume else "w") as record:
        report = Report(record, chosen, known)
        if todo:
            numbers = pathlib.Path(options.build, f"tests-{options.tier}.numbers")
            numbers.write_text(",".join(["0,0,0", *(str(test.number) for test in todo)]) + "\n")
            with subprocess.Popen(["ctest", "--test-dir", options.build, "-I", str(numbers.resolve()), "-j", str(options.jobs),
                                   "--output-on-failure", "--no-tests=error", *(["--stop-on-failure"] if options.stop else [])], env=environment, stdout=subprocess.PIPE,
                                  text=True, errors="replace") as ctest:
                for line in ctest.stdout:
                    report.line(line.rstrip("\n"))
    for name, lines in report.output.items():
        if report.status[name] == "failed":
            print(f"== failed: {name}", *lines[-LINES_SHOWN:], sep="\n")
    for test in chosen:
        if test.name not in report.status:
            print(f"== did not run: {test.name}")
            report.status[test.name] = "failed"
    counts = collections.Counter(report.status.values())
    skipped = f", {counts['skipped']} skipped" if counts["skipped"] else ""
    print(f"{counts['passed']} passed, {counts['failed']} failed{skipped}", flush=True)
    return counts["failed"] != 0 or counts["passed"] == 0


def check(table):
    problems = []
    names = list(table.rows)
    if names != sorted(names):
        first = next(a for a, b in zip(names, sorted(names)) if a != b)
        problems.append(f"rows are not in the order of names: {first}")
    for row in table.rows.values():
        if row.samples and (row.tier == "all" or (row.sample or 0) > (row.seconds or float("inf"))):
            problems.append(f"{row.name}: a sample is a part of a test of the default tier")
        if row.tier != "all" and (row.sample if row.samples else row.seconds) is None:
            problems.append(f"{row.name}: a test of the tier {row.tier} has to be measured")
    for tier, budget in table.budgets.items():
        print(f"{tier}: {table.seconds(tier):.0f} s of {budget:.0f} s")
        if table.seconds(tier) > budget:
            problems.append(f"the tests of the tier {tier} take {table.seconds(tier):.0f} s, more than their budget of {budget:.0f} s")
    if "default" not in table.budgets:
        problems.append("the default tier has no budget")
    print("\n".join(problems))
    return problems != []


def update(options, table):
    """Writes the seconds of the records of BUILD into the table, whose other lines stay."""
    tests = {test.name: test.row for test in read_tests(options.build, table)}
    measured = {}
    for tier in ("default", "all"):
        path = pathlib.Path(options.build, f"tests-{tier}.txt")
        for line in path.read_text().splitlines() if path.exists() else ():
            status, seconds, name = line.split(" ", 2)
            row = tests.get(name)
            if row is not None and status == "passed":
                column = "sample" if tier == "default" and row.samples else "seconds"
                measured.setdefault((row.name, column), {})[name] = float(seconds)
    lines = []
    for line in TABLE.read_text().splitlines():
        row = table.rows.get(line.split(" ")[0])
        if row is not None:
            words = [row.name, row.tier]
            for column in ("seconds", "sample") if row.samples else ("seconds",):
                found = measured.get((row.name, column))
                before = getattr(row, column)
                seconds = sum(found.values()) if found else before
                words.append("-" if seconds is None else f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.1f}")
            line = " ".join(words)
        lines.append(line)
    TABLE.write_text("\n".join([*lines, ""]))
    return 0


def main():
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("check")
    verbs.add_parser("update").add_argument("--build", required=True)
    verbs.add_parser("programs").add_argument("tier", choices=TIERS)
    runs = verbs.add_parser("run")
    runs.add_argument("tier", choices=TIERS)
    runs.add_argument("--build", required=True)
    runs.add_argument("--jobs", type=int, default=os.cpu_count())
    runs.add_argument("--resume", action="store_true")
    runs.add_argument("--stop", action="store_true")
    options = parser.parse_args()
    table = Table(TABLE.read_text())
    if options.verb == "programs":
        print(*(row.name for row in table.rows_of(options.tier) if row.name.startswith("tests_")))
        return 0
    if options.verb == "update":
        return update(options, table)
    return check(table) if options.verb == "check" else run(options, table)


if __name__ == "__main__":
    sys.exit(main())
